"""Every rank has its own random stream, and the same one each time."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import numpy
import torch

from plugrl.platforms.cpu import CpuPlatform
from plugrl.runtime.seeding import rank_seed, seed_rank


def draws() -> tuple[Any, ...]:
    return random.random(), float(numpy.random.rand()), torch.rand(2).tolist()


def test_ranks_differ_and_repeat() -> None:
    found = {}
    for rank in (0, 1, 0):
        seed_rank(CpuPlatform(), 1000, rank)
        drawn = draws()
        assert found.setdefault(rank, drawn) == drawn
    assert all(one != other for one, other in zip(found[0], found[1], strict=True))


def test_seeds_differ_by_rank_seed_and_step() -> None:
    seeds = {rank_seed(seed, rank, step) for seed in (0, 1, 42) for rank in range(8) for step in (None, 0, 5)}
    assert len(seeds) == 3 * 8 * 3 and all(0 <= seed < 2**63 for seed in seeds)
