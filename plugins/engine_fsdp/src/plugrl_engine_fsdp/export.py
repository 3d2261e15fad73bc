"""Full tensors under published names, read from parameters that may be sharded or off-loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Shard

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


def published_tensors(policy: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and persistent buffer once, as the policy holds it, under its published name.

    A tied parameter appears under the first of its names that the policy publishes.
    """
    seen: set[int] = set()
    for name, tensor in policy.state_dict(keep_vars=True).items():
        published = policy.published_name(name)
        if published is not None and id(tensor) not in seen:
            seen.add(id(tensor))
            yield published, tensor


def parameter_names(policy: Any) -> dict[int, str]:
    """Map ``id(parameter)`` to the published name; the module's own name where the policy publishes none."""
    names = {id(parameter): name for name, parameter in policy.named_parameters()}
    names.update({id(tensor): published for published, tensor in published_tensors(policy) if id(tensor) in names})
    return names


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor (collective), or the tensor itself without a copy."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def write_full(target: torch.Tensor, full: torch.Tensor) -> None:
    """Copy this rank's part of ``full`` into ``target``; every rank holds the whole of ``full``, so nothing is sent."""
    target = target.detach()
    if not isinstance(target, DTensor):
        target.copy_(full)
        return
    (placement,) = target.placements
    assert isinstance(placement, Shard)
    parts = full.chunk(target.device_mesh.size(), dim=placement.dim)
    index = target.device_mesh.get_local_rank()
    if index < len(parts):
        target.to_local().copy_(parts[index])


def stream(engine: DataParallelEngine) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (published name, full tensor) on the device, one gathered tensor alive at a time. Collective.

    Without sharding the tensors are the live weights, not copies: use them before the next optimizer step.
    """
    first = next(engine.module.parameters(), None)
    loaded_here = first is not None and first.device.type != engine.device.type
    if loaded_here:
        engine.to(engine.device.type, model=True, optimizer=False, grad=True)
    engine.rest()
    try:
        for name, tensor in published_tensors(engine.module):
            yield name, full_tensor(tensor)
    finally:
        if loaded_here:
            engine.to("cpu", model=True, optimizer=False, grad=True)
