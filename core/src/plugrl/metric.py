"""One measured number that knows how it is reduced.

It stands in the lowest layer because engines, losses and trackers all speak it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Reduction = Literal["mean", "sum", "max", "min", "none"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


@dataclass(frozen=True)
class Metric:
    """A scalar with its reduction.

    ``value`` may be given as int, float or a tensor of one element; it is kept as a float. ``weight`` counts what a
    mean runs over (rows or tokens); an entry of weight 0 (a dummy micro-batch) never influences a result. ``none`` is
    for what is the same everywhere, such as a learning rate: the last of several stands, and rank 0's.
    Raises ValueError for an unknown reduction, a tensor of several elements and a negative weight.
    """

    value: float
    reduction: Reduction = "mean"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise ValueError(f"Unknown reduction {self.reduction!r}. Known: {', '.join(REDUCTIONS)}.")
        object.__setattr__(self, "value", _scalar(self.value))
        object.__setattr__(self, "weight", _scalar(self.weight))
        if self.weight < 0:
            raise ValueError(f"The weight of a metric is at least 0, got {self.weight}.")

    def __float__(self) -> float:
        return self.value

    @staticmethod
    def merge(metrics: Iterable[Metric]) -> Metric:
        """Reduce the metrics of one rank, such as those of its micro-batches, to one.

        A mean is weighted, a sum adds up, weights add up. Raises ValueError when there is none or reductions differ.
        """
        items = list(metrics)
        reduction = _common_reduction(items)
        counted = [item for item in items if item.weight > 0]
        weight = sum(item.weight for item in counted)
        return Metric(_reduce(counted, reduction), reduction, weight)

    @staticmethod
    def reduce_over_ranks(ranks: Sequence[Metric | Sequence[Metric]]) -> Metric:
        """Reduce over data-parallel ranks; ``ranks[i]`` is what rank i measured, one metric or one per position.

        Mean and sum first average over the ranks position by position, then take the mean or the sum; max and min run
        over everything (rule MX-1). A sum is averaged over ranks because losses already carry the factor ``dp_size``.
        Raises ValueError when ranks hold different numbers of metrics.
        """
        rows = [[rank] if isinstance(rank, Metric) else list(rank) for rank in ranks]
        counts = sorted({len(row) for row in rows})
        if len(counts) != 1:
            raise ValueError(f"Ranks hold different numbers of metrics: {counts}.")
        reduction = _common_reduction([item for row in rows for item in row])
        if reduction == "none":
            return Metric.merge(rows[0])
        if reduction != "sum":
            return Metric.merge(item for row in rows for item in row)
        merged = [Metric.merge(row) for row in rows]
        return Metric(sum(item.value for item in merged) / len(merged), "sum", sum(item.weight for item in merged))


def _common_reduction(items: Sequence[Metric]) -> Reduction:
    reductions = {item.reduction for item in items}
    if len(reductions) != 1:
        raise ValueError(f"Metrics of one name need one reduction, got {sorted(reductions) or 'no metric'}.")
    return items[0].reduction


def _reduce(items: Sequence[Metric], reduction: Reduction) -> float:
    if not items:
        return 0.0
    values = [item.value for item in items]
    if reduction == "mean":
        return sum(item.value * item.weight for item in items) / sum(item.weight for item in items)
    if reduction == "sum":
        return sum(values)
    if reduction == "none":
        return values[-1]
    return max(values) if reduction == "max" else min(values)


def _scalar(value: Any) -> float:
    numel = getattr(value, "numel", None)
    if callable(numel) and numel() != 1:
        raise ValueError(f"A metric is one number, got a tensor of {numel()} elements.")
    return float(value)
