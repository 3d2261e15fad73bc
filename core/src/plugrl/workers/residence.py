"""Bytes that a component takes on its device, as far as they follow from its weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch

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


def _local(tensor: torch.Tensor) -> torch.Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
