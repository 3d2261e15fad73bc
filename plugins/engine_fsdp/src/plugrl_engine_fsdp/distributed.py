"""The few collectives of an engine. Every function works without a process group, where there is one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from plugrl.engines.base import Batch, BatchOptions, LossContext
from plugrl.engines.batching import num_micro_batches
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform

_FAULT = -1


def world_size() -> int:
    """Ranks of the default process group; 1 when there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank in the default process group; 0 when there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def ensure_process_group() -> None:
    """Make a group of this process alone where there is none, for wrappers that cannot do without."""
    if not dist.is_initialized():
        backend = get_platform().communication_backend_name()
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What the ranks agreed on before they walk through a batch."""

    context: LossContext
    micro_batches: int


def agree_on_batch(data: Batch, options: BatchOptions, device: torch.device) -> Agreement:
    """Sum tokens and rows over the ranks and take the largest number of micro-batches, in one collective.

    ``response_mask`` [B, T] says what counts; without one every row counts as one token. A batch that one rank cannot
    cut raises on all ranks, so that none waits for it.
    """
    fault: ValueError | None = None
    try:
        micro_batches = num_micro_batches(data, options)
    except ValueError as error:
        fault, micro_batches = error, _FAULT
    mask = data.get("response_mask")
    if mask is None:
        rows = next(iter(data.values())).shape[0] if data else 0
        local = torch.tensor([rows, rows, micro_batches], dtype=torch.int64)
    else:
        valid = mask.to(torch.bool)
        count = torch.tensor(micro_batches, device=valid.device)
        local = torch.stack((valid.sum(), valid.flatten(1).any(dim=1).sum(), count))
    size = world_size()
    if size == 1:
        tokens, rows, most = local.tolist()
    else:
        local = local.to(device)
        everyone = local.new_empty(size * 3)
        dist.all_gather_single(everyone, local)
        table = everyone.view(size, 3).cpu()
        faulty = (table[:, 2] == _FAULT).nonzero().flatten().tolist()
        if faulty and fault is None:
            raise ValueError(f"rank {faulty[0]} cannot cut its batch into micro-batches; see its error")
        tokens, rows = table[:, :2].sum(dim=0).tolist()
        most = int(table[:, 2].max())
    if fault is not None:
        raise fault
    context = LossContext(dp_size=size, batch_num_tokens=tokens, global_batch_size=rows)
    return Agreement(context=context, micro_batches=most)


def replicate_from_first_rank(module: torch.nn.Module) -> None:
    """Copy rank 0's parameters and buffers to all ranks, so that all train one model. Collective."""
    if world_size() == 1:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def gather_objects(value: Any) -> list[Any]:
    """Return every rank's ``value``, in rank order."""
    if world_size() == 1:
        return [value]
    everyone: list[Any] = [None] * world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def raise_together(error: Exception | None, doing: str) -> None:
    """Raise on all ranks when one of them failed, so that no rank waits for one that is gone. Collective."""
    messages = gather_objects(None if error is None else f"{type(error).__name__}: {error}")
    ranks: dict[str, list[str]] = {}
    for index, message in enumerate(messages):
        if message is not None:
            ranks.setdefault(message, []).append(str(index))
    failed = [f"rank {', '.join(those)}: {message}" for message, those in ranks.items()]
    if failed:
        raise CheckpointError(f"{doing} failed. " + "; ".join(failed)) from error
