"""Cuts of parameters are boxes of the model's tensors, whichever way they are cut twice."""

from __future__ import annotations

import pytest
import torch

from plugrl_engine_megatron.boxes import Slot, boxes_of_run, held_in


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4), (2, 3, 2, 3), ()])
def test_boxes_of_every_run_are_the_elements_of_the_run_in_order(shape: tuple[int, ...]) -> None:
    numbers = torch.arange(int(torch.tensor(shape).prod()) if shape else 1).view(shape)
    count = numbers.numel()
    for start in range(count):
        for end in range(start, count + 1):
            boxes = list(boxes_of_run(shape, start, end))
            found = [numbers[tuple(slice(*part) for part in box)].flatten() for box in boxes]
            assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == list(range(start, end))
            assert len(boxes) <= max(1, 2 * len(shape) - 1), "a run is few boxes"


def qkv(groups: int, per_group: int, size: int, hidden: int, first: int, count: int) -> Slot:
    """Some of the rows of each group of heads."""
    return Slot(
        name="part", shape=(2 * groups * count * size, hidden), offsets=(groups * count * size, 0),
        view=(groups, per_group + 2, size, hidden),
        box=((0, groups), (first, first + count), (0, size), (0, hidden)), merged=((0, 1, 2), (3,)),
    )  # fmt: skip


@pytest.mark.parametrize(("first", "count"), [(0, 2), (2, 1), (3, 1)])
def test_what_lies_in_the_runs_of_all_ranks_is_the_whole_tensor_once(first: int, count: int) -> None:
    """The second of two tensor-parallel ranks, its parameter cut into runs that end anywhere."""
    groups, per_group, size, hidden = 2, 2, 3, 4
    slot = qkv(groups, per_group, size, hidden, first, count)
    parameter = torch.arange(groups * (per_group + 2) * size * hidden, dtype=torch.float32)
    wanted = parameter.view(slot.view)[:, first : first + count].reshape(-1, hidden)
    for runs in ([0, 96], [0, 17, 50, 96], [0, 1, 2, 95, 96], [0, 24, 48, 72, 96]):
        whole, times = torch.zeros(slot.shape), torch.zeros(slot.shape)
        for start, end in zip(runs, runs[1:], strict=False):
            for held in held_in(slot, parameter[start:end], start):
                region = tuple(slice(a, a + n) for a, n in zip(held.block.offsets, held.block.sizes, strict=True))
                whole[region] = held.read()
                times[region] += 1
        half = groups * count * size
        assert torch.equal(whole[half:], wanted)
        assert torch.equal(times[half:], torch.ones_like(wanted)) and not times[:half].any()


def test_writing_a_block_reaches_the_parameter() -> None:
    slot = qkv(2, 2, 3, 4, 2, 1)
    parameter = torch.zeros(96)
    for start, end in ((0, 30), (30, 96)):
        for held in held_in(slot, parameter[start:end], start):
            held.write(torch.ones(held.block.sizes))
    keys = parameter.view(slot.view)[:, 2]
    assert torch.equal(keys, torch.ones_like(keys)) and parameter.sum() == keys.numel()
