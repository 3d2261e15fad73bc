"""Digests tell whether two processes hold the same weights, to the bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_equal_digests_mean_equal_bytes_dtype_and_shape() -> None:
    from plugrl.workers.digests import weight_digests

    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(0), "c": torch.tensor(1.5, dtype=torch.bfloat16)}
    first = weight_digests(weights.items())
    assert first.keys() == weights.keys() and len(set(first.values())) == 3
    assert weight_digests([("a", weights["a"].t().contiguous().t())])["a"] == first["a"]
    for other in (weights["a"].view(3, 2), weights["a"].double(), weights["a"] + 1e-6, -weights["a"]):
        assert weight_digests([("a", other)])["a"] != first["a"]
