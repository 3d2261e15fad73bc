"""Routing of m ranks to n ranks: plans, and batches that are cut and put together again."""

from __future__ import annotations

import random
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from plugrl.errors import UserError
from plugrl.runtime.routing import (
    batch_size,
    build_recv_plan,
    build_send_plan,
    merge_batches,
    owned,
    split_batch,
)

torch = pytest.importorskip("torch")

GOLDEN = [
    (12, 2, 3, [[(0, 4), (1, 2)], [(1, 2), (2, 4)]]),
    (12, 3, 2, [[(0, 4)], [(0, 2), (1, 2)], [(1, 4)]]),
    (10, 3, 4, [[(0, 2), (1, 1)], [(1, 2), (2, 1)], [(2, 1), (3, 3)]]),
    (1, 2, 3, [[], [(2, 1)]]),
    (0, 2, 2, [[], []]),
]
Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Record:
    values: Any
    label: str
    missing: None = None


@pytest.mark.parametrize(("batch", "src", "dst", "expected"), GOLDEN)
def test_plans_of_the_reference(batch: int, src: int, dst: int, expected: list[list[tuple[int, int]]]) -> None:
    plans = [[(t.dst, t.size) for t in build_send_plan(batch, src, dst, rank)] for rank in range(src)]
    assert plans == expected


def test_every_ratio_covers_the_batch_once_and_both_sides_agree() -> None:
    for src in range(1, 8):
        for dst in range(1, 8):
            for batch in (0, 1, 5, 12, 41):
                sent = [t for rank in range(src) for t in build_send_plan(batch, src, dst, rank)]
                received = [t for rank in range(dst) for t in build_recv_plan(batch, src, dst, rank)]
                assert sorted(received, key=lambda t: t.start) == sent, (batch, src, dst)
                assert [item for t in sent for item in range(t.start, t.stop)] == list(range(batch))
                assert len({t.key for t in sent}) == len(sent)
                assert all(t.start in owned(batch, dst, t.dst) for t in sent)


def nested(count: int) -> dict[str, Any]:
    return {
        "tokens": torch.arange(count * 3).reshape(count, 3).to(torch.bfloat16),
        "mask": np.arange(count) % 2 == 0,
        "texts": [f"item {i}" for i in range(count)],
        "rows": [[i] * i for i in range(count)],
        "nothing": None,
        "version": 7,
        "scale": torch.tensor(0.5),
        "pair": Pair(torch.ones(count), {"inner": (torch.zeros(count, 0), "common")}),
        "record": Record(torch.arange(count), "same"),
        "empty": {},
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Record):
        return same(vars(one), vars(other))
    return bool(one == other)


def test_what_was_split_is_whole_again() -> None:
    numbers = random.Random(3)
    for count in (1, 4, 9):
        for world in (1, 2, 5, 11):
            batch = nested(count)
            parts = split_batch(batch, [len(owned(count, world, rank)) for rank in range(world)])
            assert [batch_size(part) for part in parts] == [len(owned(count, world, rank)) for rank in range(world)]
            assert same(merge_batches(parts), batch), (count, world)
            cut = numbers.randint(0, count)
            assert same(merge_batches(split_batch(batch, [cut, count - cut])), batch)


def test_parts_follow_the_plan_through_m_and_n_ranks() -> None:
    batch, src, dst = nested(10), 3, 4
    held = split_batch(batch, [len(owned(10, src, rank)) for rank in range(src)])
    wire = {}
    for rank in range(src):
        plan = build_send_plan(10, src, dst, rank)
        wire.update(zip([t.key for t in plan], split_batch(held[rank], [t.size for t in plan]), strict=True))
    got = [merge_batches([wire[t.key] for t in build_recv_plan(10, src, dst, rank)]) for rank in range(dst)]
    assert same(merge_batches(got), batch)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: split_batch({"a": [1, 2]}, [1, 2]), "2 items cannot be split into"),
        (lambda: split_batch({"a": [1, 2], "b": torch.zeros(3)}, [1, 1]), "a 2, b 3"),
        (lambda: batch_size({"a": None}), "no field with items"),
        (lambda: merge_batches([]), "nothing to merge"),
        (lambda: merge_batches([{"a": [1]}, {"b": [1]}]), "different fields"),
        (lambda: merge_batches([{"a": [1], "v": 1}, {"a": [1], "v": 2}]), "Field v belongs to every item"),
        (lambda: merge_batches([{"a": torch.zeros(1, 2)}, {"a": torch.zeros(1, 3)}]), "do not fit together"),
        (lambda: merge_batches([{"a": torch.zeros(1)}, {"a": None}]), "Field a differs between the parts"),
        (lambda: build_send_plan(4, 2, 2, 2), "Rank 2 of 2"),
    ],
)
def test_what_does_not_fit_is_named(action: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        action()
