"""Full tensors under published names, read from parameters that may be sharded or off-loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from plugrl_engine_fsdp.checkpoint.contents import gather

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


def stream(
    engine: DataParallelEngine, wanted: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (published name, full tensor) on the device, one gathered tensor alive at a time. Collective.

    ``wanted`` picks tensors by name; None takes all.
    What lies on the host is copied tensor by tensor. Without sharding and off-loading the tensors are the live weights,
    not copies: use them before the next optimizer step.
    """
    for name, tensor in engine.layout.named_tensors(engine.module).items():
        if wanted is None or wanted(name):
            # One by one: FSDP2's own off-loading puts back on the host at once what is moved as a whole.
            yield name, gather(tensor, engine.device).to(engine.device)
