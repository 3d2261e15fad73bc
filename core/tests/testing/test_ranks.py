"""The pool that runs functions as ranks: results in order, failures told, nothing left waiting."""

from __future__ import annotations

import os
import time

import pytest

from plugrl.testing.ranks import RankError, RankPool


def sum_of_ranks(rank: int, world: int) -> tuple[float, int]:
    import torch
    import torch.distributed as dist

    value = torch.tensor([rank + 1.0])
    if dist.is_initialized():
        dist.all_reduce(value)
    return float(value), os.getpid()


def fail_on(rank: int, world: int, failing: int) -> None:
    import torch
    import torch.distributed as dist

    if rank == failing:
        raise ValueError("this rank fails")
    dist.all_reduce(torch.ones(1))


def die(rank: int, world: int) -> None:
    print("the last word", flush=True)
    os._exit(3)


def sleep(rank: int, world: int) -> None:
    time.sleep(60)


def test_ranks_meet_and_the_processes_are_kept(ranks: RankPool) -> None:
    four = ranks.run(sum_of_ranks, world=4)
    two = ranks.run(sum_of_ranks, world=2)
    alone = ranks.run(sum_of_ranks, world=1)
    assert [value for value, _ in four] == [10.0] * 4
    assert [value for value, _ in two] == [3.0] * 2 and [value for value, _ in alone] == [1.0]
    assert [pid for _, pid in two] == [pid for _, pid in four][:2]


@pytest.mark.slow
def test_a_failing_rank_a_dead_one_and_a_late_one_are_named_and_replaced(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="rank 1 of 2: [^$]*this rank fails"):
        ranks.run(fail_on, 1, world=2)
    with pytest.raises(RankError, match="the process ended[^$]*the last word"):
        ranks.run(die, world=1)
    with pytest.raises(RankError, match="no answer before the deadline"):
        ranks.run(sleep, world=1, timeout_s=0.5)
    assert [value for value, _ in ranks.run(sum_of_ranks, world=2)] == [3.0] * 2


@pytest.mark.slow
def test_a_platform_that_cannot_be_used_is_an_error_of_the_start_and_leaves_the_pool_as_it_was(ranks: RankPool) -> None:
    with pytest.raises(RankError, match='did not start: [^$]*No platform "nowhere"'):
        ranks.run(sum_of_ranks, world=2, platform="nowhere")
    assert [value for value, _ in ranks.run(sum_of_ranks, world=2, platform="cpu")] == [3.0] * 2
