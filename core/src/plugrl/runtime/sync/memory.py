"""Shared memory without a name: it is gone with the last process that holds it, however that one ends."""

from __future__ import annotations

import mmap
import os
import tempfile

import torch


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


def map_private(descriptor: int, size: int) -> torch.Tensor:
    """Return the memory as uint8 [size], read from the shared pages; what is written stays in this process.

    torch knows no read-only tensors: with copy on write, a slip changes nobody else's weights.
    """
    return torch.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY), dtype=torch.uint8)
