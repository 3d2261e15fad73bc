"""Arrays that two processes share. The memory has no name: the system frees it with the last process that has it."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64
Spec = tuple[tuple[int, ...], str]
"""Shape and NumPy's name of the type of an array."""


@dataclass(frozen=True)
class Layout:
    """Where each array lies: ``(name, offset in bytes, shape, type)``, and the bytes of all."""

    fields: tuple[tuple[str, int, tuple[int, ...], str], ...]
    size: int

    @classmethod
    def of(cls, specs: Mapping[str, Spec]) -> Layout:
        """Return the arrays one after the other, each aligned to a cache line."""
        fields, offset = [], 0
        for name, (shape, dtype) in specs.items():
            fields.append((name, offset, tuple(shape), dtype))
            length = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            offset += -(-length // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(fields), max(offset, _ALIGNMENT))


class SharedArrays:
    """Arrays in memory that other processes map too, by the descriptor of an anonymous file.

    Args:
        descriptor: of memory that another process made; None makes new memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _new_memory() if descriptor is None else descriptor
        self.layout: Layout | None = None
        self.views: dict[str, NDArray] = {}

    def use(self, layout: Layout) -> None:
        """Lay the arrays out anew, in as much memory as they need; ``views`` holds them by name."""
        if os.fstat(self.descriptor).st_size < layout.size:
            os.ftruncate(self.descriptor, layout.size)
        memory = mmap.mmap(self.descriptor, layout.size)
        self.layout = layout
        self.views = {
            name: np.ndarray(shape, dtype=dtype, buffer=memory, offset=offset)
            for name, offset, shape, dtype in layout.fields
        }

    def close(self) -> None:
        """Give up the memory; views that are still held keep their part of it."""
        self.views = {}
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _new_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("plugrl-simulator", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
