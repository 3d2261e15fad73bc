"""Metrics of one step reduced over the ranks that measured them, inside the ranks themselves.

Ranks agree on the names first: values are reduced by name and never by position, and a rank that lacks a name neither
shifts the others nor makes them wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from plugrl.metric import Metric

Names = tuple[tuple[str, str], ...]
"""``(name, reduction)`` pairs, sorted."""


class MetricReducer:
    """Reduces mappings of metrics over a process group; without one it changes nothing.

    A mean is a sum of values by a sum of weights over all ranks, never a mean of means. Sums are averaged over the
    ranks that have them, see :meth:`plugrl.metric.Metric.reduce_over_ranks`. ``device`` is where the group's tensors
    lie.
    """

    def __init__(self, group: Any = None, device: torch.device | str = "cpu") -> None:
        self._group = group
        self._device = torch.device(device)
        self._agreed: dict[tuple[int, ...], Names] = {}

    def __call__(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Return the values over all ranks, the same on each of them, by sorted name. Collective.

        Raises ValueError on all ranks when two of them reduce one name differently.
        """
        if self._group is None or dist.get_world_size(self._group) == 1:
            return {name: metrics[name].value for name in sorted(metrics)}
        names = self._agree(tuple(sorted((name, metric.reduction) for name, metric in metrics.items())))
        first = dist.get_rank(self._group) == 0
        sums, extremes = [], []
        for name, reduction in names:
            metric = metrics.get(name)
            absent = metric is None or metric.weight <= 0
            if reduction in ("max", "min"):
                sign = 1.0 if reduction == "max" else -1.0
                extremes.append(-torch.inf if absent or metric is None else sign * metric.value)
                continue
            weight = 0.0 if absent or metric is None else metric.weight if reduction == "mean" else 1.0
            if reduction == "none" and not first:
                weight = 0.0
            sums.append((metric.value * weight if metric is not None and weight else 0.0, weight))
        return self._values(names, sums, extremes)

    def _values(self, names: Names, sums: list[tuple[float, float]], extremes: list[float]) -> dict[str, float]:
        added = torch.tensor(sums, dtype=torch.float64, device=self._device).reshape(-1, 2)
        largest = torch.tensor(extremes, dtype=torch.float64, device=self._device)
        if sums:
            dist.all_reduce(added, group=self._group)
        if extremes:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._group)
        pairs, peaks = iter(added.tolist()), iter(largest.tolist())
        values = {}
        for name, reduction in names:
            if reduction in ("max", "min"):
                peak = next(peaks)
                values[name] = 0.0 if peak == -torch.inf else peak if reduction == "max" else -peak
            else:
                total, weight = next(pairs)
                values[name] = total / weight if weight else 0.0
        return values

    def _agree(self, own: Names) -> Names:
        """Return the sorted union of all ranks' names; they travel only when a set is new."""
        digest = hashlib.sha256(repr(own).encode()).digest()[:8]
        mine = torch.tensor([int.from_bytes(digest, "big", signed=True)], dtype=torch.int64, device=self._device)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(everyone, mine, group=self._group)
        key = tuple(int(item) for item in everyone)
        if len(set(key)) == 1:
            return own
        # All ranks have seen the same keys, so all of them come here or none.
        if key not in self._agreed:
            lists: list[Any] = [None] * len(key)
            dist.all_gather_object(lists, own, group=self._group)
            union = tuple(sorted({pair for names in lists for pair in names}))
            self._agreed[key] = union
        names = [name for name, _ in self._agreed[key]]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"Ranks reduce {', '.join(twice)} in different ways.")
        return self._agreed[key]
