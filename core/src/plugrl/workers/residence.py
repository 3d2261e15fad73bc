"""Bytes that a component takes on its device: what follows from its weights, and what the device has counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from plugrl.platforms import PlatformBase

MIB = 2**20
_MOMENTS_BYTES = 8
"""Two moments of an element in float32, as the AdamW family keeps them."""


def weight_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors on this rank; of a sharded tensor its own shard."""
    return sum(local.numel() * local.element_size() for local in map(_local, tensors))


def training_bytes(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Return the bytes of gradients and optimizer state that training adds on this rank."""
    total = 0
    for parameter in parameters:
        if parameter.requires_grad:
            local = _local(parameter)
            total += local.numel() * (local.element_size() + _MOMENTS_BYTES)
    return total


def as_mib(count: int) -> int:
    """Return bytes in MiB, rounded up."""
    return -(-count // MIB)


@dataclass(frozen=True)
class DeviceMemory:
    """What a device says of its memory, in MiB; 0 where it does not say.

    peak_mib: the most that this process held since it was last asked. whole_mib: all that the device has.
    """

    peak_mib: int = 0
    whole_mib: int = 0


def device_memory(platform: PlatformBase) -> DeviceMemory:
    """Ask this process's device, and let it count its peak anew."""
    module = platform.device_module
    peak, info = getattr(module, "max_memory_allocated", None), getattr(module, "mem_get_info", None)
    found = DeviceMemory(as_mib(peak()) if peak else 0, info()[1] // MIB if info else 0)
    restart = getattr(module, "reset_peak_memory_stats", None)
    if restart is not None:
        restart()
    return found


def merged_memory(ranks: Iterable[DeviceMemory]) -> DeviceMemory:
    """Return the largest peak, and the memory of the smallest device that says."""
    found = list(ranks)
    wholes = [one.whole_mib for one in found if one.whole_mib]
    return DeviceMemory(max(one.peak_mib for one in found), min(wholes, default=0))


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
