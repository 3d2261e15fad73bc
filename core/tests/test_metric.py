"""A metric carries its reduction (rule MX-1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plugrl.metric import Metric


@pytest.mark.parametrize(("reduction", "value"), [("sum", 5.0), ("mean", 2.5), ("max", 4.0), ("min", 1.0)])
def test_reduction_over_two_ranks(reduction: Any, value: float) -> None:
    ranks = [[Metric(number, reduction) for number in rank] for rank in ([1, 2], [3, 4])]
    assert float(Metric.reduce_over_ranks(ranks)) == value
    assert float(Metric.reduce_over_ranks([Metric.merge(rank) for rank in ranks])) == value


def test_ranks_with_different_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers"):
        Metric.reduce_over_ranks([[Metric(1)], [Metric(1), Metric(2)]])


def test_a_mean_is_weighted_and_the_name_of_a_metric_means_nothing() -> None:
    assert float(Metric.merge([Metric(1.0, weight=1), Metric(3.0, weight=3)])) == 2.5
    assert Metric.merge([Metric(1, "sum"), Metric(2, "sum")]) == Metric(3.0, "sum", 2.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "max", "min"])
def test_weight_0_never_counts(reduction: Any) -> None:
    dummy = Metric(float("nan"), reduction, 0.0)
    assert float(Metric.merge([dummy, Metric(2.0, reduction), dummy])) == 2.0
    assert Metric.merge([dummy]) == Metric(0.0, reduction, 0.0)


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="average"):
        Metric(1.0, "average")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 elements"):
        Metric(SimpleNamespace(numel=lambda: 4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight"):
        Metric(1.0, weight=-1.0)
    with pytest.raises(ValueError, match="one reduction"):
        Metric.merge([Metric(1, "sum"), Metric(1, "mean")])
    with pytest.raises(ValueError, match="no metric"):
        Metric.merge([])


def test_numbers_and_scalar_tensors_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    assert [float(Metric(value)) for value in (2, 2.0, torch.tensor(2), torch.tensor([2.0]))] == [2.0] * 4
