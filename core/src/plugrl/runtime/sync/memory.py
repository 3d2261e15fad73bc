"""Shared memory without a name: it is gone with the last process that holds it, however that one ends."""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
import torch

_PAGE_MAP = "/proc/self/pagemap"
_SHARED = np.uint64(1 << 61)
"""Of an entry of the page map: the page is that of the file, no copy of this process."""
_HELD = np.uint64(3 << 62)
"""The page is in memory, or was swapped out."""


def anonymous_memory(size: int) -> int:
    """Return the descriptor of shared memory without a name; pages count when they are first written."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("plugrl", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:  # Has no name either once it is open.
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def map_shared(descriptor: int, size: int) -> torch.Tensor:
    """Return the memory as uint8 [size]; it stays mapped as long as the tensor or a view of it lives."""
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


class PrivateMap:
    """Shared memory as one process sees it: uint8 [size] in ``memory``, mapped as long as a view of it lives.

    torch knows no read-only tensors: with copy on write, a slip changes nobody else's weights.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
        self.memory = torch.frombuffer(self._map, dtype=torch.uint8)

    def forget_writes(self) -> bool:
        """Give up the pages that this process has written to, so that the shared ones are seen again.

        A mapping that stays costs no page faults. Returns False where the system does not tell which pages they are:
        then only a new mapping forgets.
        """
        page = mmap.PAGESIZE
        first, pages = self.memory.data_ptr() // page, -(-len(self._map) // page)
        try:
            entries = np.fromfile(_PAGE_MAP, np.uint64, count=pages, offset=first * _SHARED.itemsize)
        except OSError:
            return False
        if len(entries) < pages or not hasattr(mmap, "MADV_DONTNEED"):
            return False
        own = np.flatnonzero((entries & _HELD != 0) & (entries & _SHARED == 0))
        for run in np.split(own, np.flatnonzero(np.diff(own) > 1) + 1) if len(own) else ():
            self._map.madvise(mmap.MADV_DONTNEED, int(run[0]) * page, len(run) * page)
        return True
