"""Full tensors under published names, read from parameters that may be sharded or off-loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a sharded tensor (collective), or the tensor itself without a copy."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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
