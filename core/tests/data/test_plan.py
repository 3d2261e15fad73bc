"""The data plan: golden positions, nothing lost and nothing repeated, independent of every global state."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numpy")

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.data.plan import DataPlan, Position, held_out_rows
from plugrl.errors import CheckpointError, DataError


@pytest.mark.parametrize(
    ("samples", "batch", "world", "step", "epoch", "offset"),
    [(100, 10, 2, 7, 1, 40), (95, 10, 2, 12, 2, 40), (105, 10, 2, 11, 1, 100)],
)
def test_golden_positions(samples: int, batch: int, world: int, step: int, epoch: int, offset: int) -> None:
    plan = DataPlan(num_samples=samples, batch_size=batch, world_size=world)
    walked = Position()
    for _ in range(step):
        walked = plan.after(walked)
    assert plan.at_step(step) == walked == Position(epoch, offset, step * batch * world)


def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    plan, twin = (DataPlan(num_samples=50, batch_size=4, seed=3) for _ in range(2))
    random.seed(1), numpy.random.seed(1)
    first = [list(plan.order(epoch)) for epoch in (0, 1)]
    random.seed(2), numpy.random.seed(2)
    assert first == [list(twin.order(epoch)) for epoch in (0, 1)]
    assert sorted(first[0]) == list(range(50)) and first[0] != first[1]
    assert list(DataPlan(num_samples=50, batch_size=4, seed=4).order(0)) != first[0]
    assert list(plan.order(0)) == first[0], "an order that was dropped comes back the same"


def test_golden_order() -> None:
    """The order is part of what a checkpoint means: another one would repeat and lose samples on resume."""
    assert list(DataPlan(num_samples=8, batch_size=1, seed=1000).order(2)) == [7, 2, 6, 5, 0, 3, 4, 1]


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(1, 60), batch=st.integers(1, 5), world=st.integers(1, 4), drop=st.booleans(), start=st.data()
)
def test_an_epoch_hands_out_every_sample_once_apart_from_padding(
    samples: int, batch: int, world: int, drop: bool, start: st.DataObject
) -> None:
    if drop and samples < batch * world:
        with pytest.raises(DataError, match="drop_last"):
            DataPlan(num_samples=samples, batch_size=batch, world_size=world, drop_last=drop)
        return
    plan = DataPlan(num_samples=samples, batch_size=batch, world_size=world, drop_last=drop, seed=1)
    # Also from the middle: another world or batch size goes on exactly where the earlier one stopped.
    offset = start.draw(st.integers(0, samples - 1))
    position, taken = plan.settle(Position(0, offset)), []
    while position.epoch == 0:
        for rank in range(world):
            taken += plan.rows(position, rank)
        position = plan.after(position)
    rest = list(plan.order(0))[offset:]
    if drop:
        assert taken == rest[: len(taken)] and len(rest) - len(taken) < batch * world
    else:
        assert taken[: len(rest)] == rest and len(taken) - len(rest) < batch * world
        cycle = list(plan.order(0))
        padding = taken[len(rest) :]
        assert padding == [cycle[index % samples] for index in range(len(padding))]


def test_without_shuffling_the_samples_come_as_they_are() -> None:
    plan = DataPlan(num_samples=5, batch_size=2, world_size=2, shuffle=False)
    assert [plan.rows(Position(), rank) for rank in (0, 1)] == [[0, 1], [2, 3]]
    assert [plan.rows(plan.after(Position()), rank) for rank in (0, 1)] == [[4, 0], [1, 2]]


def test_held_out_samples_are_counted_once() -> None:
    shares = [held_out_rows(7, rank, 3) for rank in range(3)]
    assert sorted(row for share in shares for row in share) == list(range(7))


def test_a_position_survives_its_file_and_a_bad_one_is_refused() -> None:
    position = Position(3, 17, 1000)
    assert Position.from_dict(position.as_dict()) == position
    for bad in ({}, {"epoch": 0, "offset": "x", "samples_seen": 0}, {"epoch": -1, "offset": 0, "samples_seen": 0}):
        with pytest.raises(CheckpointError, match="position"):
            Position.from_dict(bad)


def test_no_samples_are_refused() -> None:
    with pytest.raises(DataError, match="no sample"):
        DataPlan(num_samples=0, batch_size=1)
