"""Memory functions of ``torch.vdev``. All sizes are bytes; nothing is cached, so reserved is what is allocated."""

from __future__ import annotations

from typing import Any

import torch

from plugrl_platform_vdev.device.native import Device, index_of, native


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return torch's statistics of an accelerator's allocator: ``"allocated_bytes.all.current"`` and so on."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def memory_allocated(device: Device = None) -> int:
    """Bytes of all tensors and storages that are alive on the device."""
    return int(torch.accelerator.memory_allocated(index_of(device)))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that were allocated since the start or :func:`reset_peak_memory_stats`."""
    return int(torch.accelerator.max_memory_allocated(index_of(device)))


def memory_reserved(device: Device = None) -> int:
    """As :func:`memory_allocated`: there is no cache."""
    return int(torch.accelerator.memory_reserved(index_of(device)))


def max_memory_reserved(device: Device = None) -> int:
    """As :func:`max_memory_allocated`: there is no cache."""
    return int(torch.accelerator.max_memory_reserved(index_of(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Begin a new peak at what is allocated now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Begin to count allocations anew."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Do nothing: what is freed is free at once."""


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return (free, total) bytes; without a budget the total stands for "no limit"."""
    free, total = native().memory_info(index_of(device))
    return int(free), int(total)
