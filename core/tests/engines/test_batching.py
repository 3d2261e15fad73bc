"""Micro-batches: how many, which rows, and the way back."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from plugrl.engines.base import BatchOptions  # noqa: E402
from plugrl.engines.batching import merge_rows, num_micro_batches, split_micro_batches  # noqa: E402
from plugrl.errors import ConfigError  # noqa: E402


def batch_of(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Return a batch with these numbers of tokens; ``row`` numbers its rows."""
    width = max(lengths)
    mask = torch.tensor([[0] * (width - length) + [1] * length for length in lengths])
    return {"attention_mask": mask, "response_mask": mask.clone(), "row": torch.arange(len(lengths))}


@pytest.mark.parametrize(
    ("lengths", "budget", "count"),
    [([100, 200, 300, 400], 512, 2), ([64] * 10, 64, 10), ([5, 5, 5], 4096, 1), ([300, 300, 300], 500, 3)],
)
def test_count_under_a_token_budget(lengths: list[int], budget: int, count: int) -> None:
    assert num_micro_batches(batch_of(lengths), BatchOptions(max_tokens=budget)) == count


def test_sequence_beyond_the_budget_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"20 tokens.*16"):
        num_micro_batches(batch_of([10, 20]), BatchOptions(max_tokens=16))


@pytest.mark.parametrize(("size", "rows", "count"), [(None, 5, 1), (2, 5, 3), (5, 5, 1), (8, 5, 1)])
def test_count_by_rows(size: int | None, rows: int, count: int) -> None:
    parts = split_micro_batches(batch_of([3] * rows), BatchOptions(micro_batch_size=size))
    assert len(parts) == count == num_micro_batches(batch_of([3] * rows), BatchOptions(micro_batch_size=size))
    assert torch.equal(torch.cat([part.indices for part in parts]), torch.arange(rows))


@pytest.mark.parametrize("seed", range(20))
def test_budget_holds_and_every_row_comes_once(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(0, 50) for _ in range(draw.randint(1, 20))]
    lengths[0] = 50
    budget = draw.randint(50, 200)
    data, options = batch_of(lengths), BatchOptions(max_tokens=budget)
    needed = num_micro_batches(data, options)
    parts = split_micro_batches(data, options, count=needed + draw.randint(0, 3))
    real = [part for part in parts if not part.is_dummy]
    assert sorted(torch.cat([part.indices for part in real]).tolist()) == list(range(len(lengths)))
    assert all(len(part.indices) > 0 and part.data["attention_mask"].sum() <= budget for part in real)
    assert len(parts) >= needed
    merged = merge_rows((part, {"double": part.data["row"] * 2}) for part in parts)
    assert torch.equal(merged["double"], data["row"] * 2)


def test_ranks_with_fewer_rows_get_dummies_without_a_token_that_counts() -> None:
    data = batch_of([4, 2, 3])
    parts = split_micro_batches(data, BatchOptions(micro_batch_size=2), count=4)
    assert [part.is_dummy for part in parts] == [False, False, True, True]
    dummy = parts[-1].data
    assert dummy["response_mask"].sum() == 0 and dummy["attention_mask"].sum() == 2
    assert data["response_mask"].sum() == 9
    assert len(parts[-1].indices) == 0


def test_fewer_than_needed_is_refused() -> None:
    with pytest.raises(ValueError, match="3 micro-batches"):
        split_micro_batches(batch_of([1] * 3), BatchOptions(micro_batch_size=1), count=2)


def test_broken_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        num_micro_batches({}, BatchOptions())
    with pytest.raises(ValueError, match="row-aligned"):
        num_micro_batches({"a": torch.zeros(2), "b": torch.zeros(3)}, BatchOptions())
