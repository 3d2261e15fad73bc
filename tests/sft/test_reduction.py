"""Metrics over ranks: by name, with true counts, and never a hang when names differ."""

from __future__ import annotations

import sft_ranks

from plugrl.metric import Metric
from plugrl.testing.ranks import RankPool
from plugrl.workers.reduction import MetricReducer


def test_metrics_are_reduced_by_name_with_their_counts(ranks: RankPool) -> None:
    first, second = ranks.run(sft_ranks.reduce_metrics, world=2)
    assert first == second
    swapped, once, twice, none, problem, after = first
    assert swapped == {"a": 1.0, "b": 100.0}, "the order of a mapping must not matter"
    assert once == twice == {
        "least": 0.0, "loss": (1.0 * 1 + 2.0 * 3) / 4, "lr": 0.5, "only_0": 7.0, "only_1": 8.0, "share": 1.0,
        "slowest": 1.0,
    }  # fmt: skip
    assert none == {} and after == {"a": 0.5}
    assert "Ranks reduce x in different ways" in problem


def test_without_a_group_nothing_changes() -> None:
    assert MetricReducer()({"b": Metric(2.0, "sum"), "a": Metric(1.0, "none")}) == {"a": 1.0, "b": 2.0}
