"""Splitting a batch's rows over data-parallel ranks, and putting the answers back in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plugrl.engines.base import Batch
from plugrl.metric import Metric


@dataclass(frozen=True)
class DataPlace:
    """Which rows a rank sees: the part ``rank`` of ``size``. answers: whether it is the one of those that see the same
    rows whose outputs and metrics count."""

    rank: int
    size: int
    answers: bool


def row_lengths(batch: Batch) -> Tensor:
    """Return the tokens [B] of each row, or ones where the batch has no ``attention_mask``."""
    if "attention_mask" in batch:
        return batch["attention_mask"].sum(-1)
    return torch.ones(num_rows(batch), dtype=torch.long)


def num_rows(batch: Batch) -> int:
    """Return B."""
    return next(iter(batch.values())).shape[0]


def take(batch: Batch, rows: Tensor) -> dict[str, Tensor]:
    """Return the given rows of every tensor."""
    return {name: tensor[rows] for name, tensor in batch.items()}


def balanced_split(lengths: Tensor, parts: int) -> list[Tensor]:
    """Split rows into ``parts`` index tensors whose sizes differ by at most one and whose lengths are alike.

    Rows are dealt out longest first, back and forth over the parts; each part is returned in ascending order.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    position = torch.arange(len(order))
    lap, seat = position // parts, position % parts
    part = torch.where(lap % 2 == 0, seat, parts - 1 - seat)
    return [order[part == index].sort().values for index in range(parts)]


def merge_rows(shares: Sequence[Tensor], outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Undo :func:`balanced_split`: ``outputs[i]`` holds the rows ``shares[i]``."""
    order = torch.argsort(torch.cat(list(shares)))
    return {name: torch.cat([output[name] for output in outputs])[order] for name in outputs[0]}


def reduce_metrics(ranks: Sequence[Sequence[Mapping[str, Metric]]]) -> dict[str, float]:
    """Reduce ``ranks[rank][mini_batch][name]``: over the ranks for each mini-batch, then the mean over mini-batches.

    A name that some ranks lack is reduced over those that have it.
    """
    steps = [
        {
            name: Metric.reduce_over_ranks([rank[name] for rank in position if name in rank])
            for name in dict.fromkeys(name for rank in position for name in rank)
        }
        for position in zip(*ranks, strict=True)
    ]
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: _over_steps([step[name] for step in steps if name in step]) for name in names}


def _over_steps(metrics: Iterable[Metric]) -> float:
    """Mean over optimizer steps, whatever the reduction inside a step; extremes stay extremes."""
    items = list(metrics)
    if items[0].reduction in ("max", "min", "none"):
        return Metric.merge(items).value
    return sum(item.value for item in items) / len(items)
