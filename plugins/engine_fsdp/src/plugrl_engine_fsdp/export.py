"""Full tensors under published names, read from parameters that may be sharded or off-loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor, Shard

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


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
    # On a mesh with several copies the other placement is Replicate: every copy holds the same parts.
    (mesh_dim,) = (index for index, placement in enumerate(target.placements) if isinstance(placement, Shard))
    placement = target.placements[mesh_dim]
    assert isinstance(placement, Shard)
    parts = full.chunk(target.device_mesh.size(mesh_dim), dim=placement.dim)
    index = target.device_mesh.get_local_rank(mesh_dim)
    if index < len(parts):
        target.to_local().copy_(parts[index])


def stream(
    engine: DataParallelEngine, wanted: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (published name, full tensor) on the device, one gathered tensor alive at a time. Collective.

    ``wanted`` picks tensors by name; None takes all.
    Without sharding the tensors are the live weights, not copies: use them before the next optimizer step.
    """
    first = next(engine.module.parameters(), None)
    loaded_here = first is not None and first.device.type != engine.device.type
    if loaded_here:
        engine.to(engine.device.type, model=True, optimizer=False, grad=True)
    try:
        for name, tensor in engine.layout.named_tensors(engine.module).items():
            if wanted is None or wanted(name):
                yield name, full_tensor(tensor)
    finally:
        if loaded_here:
            engine.to("cpu", model=True, optimizer=False, grad=True)
