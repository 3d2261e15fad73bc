"""The process group vccl: results, refusals, logs, faults and mutants, on two devices in processes of their own."""

from __future__ import annotations

import math
from pathlib import Path

import collective_ranks as on_ranks
import pytest

from plugrl.testing.rank_pool import RankPool


def test_reductions_agree_with_arithmetic(python_pool: RankPool) -> None:
    first, second = python_pool.run(on_ranks.reductions, world=2)
    for found in (first, second):
        assert found["SUM torch.float32"] == [3.0, 30.0]
        assert found["MAX torch.bfloat16"] == [2.0, 20.0]
        assert found["AVG torch.bfloat16"] == [1.5, 15.0]
        assert found["SUM torch.int64"] == [3, 30]
        assert found["transposed"] == [[2.0, 4.0], [6.0, 8.0]]
        assert found["coalesced"] == [[2.0], [4.0, 6.0]]
    assert (first["reduce"], second["reduce"]) == ([1.0], [3.0])
    assert (first["reduce_scatter_single"], second["reduce_scatter_single"]) == ([1.0, 2.0], [3.0, 4.0])
    assert (first["reduce_scatter"], second["reduce_scatter"]) == ([2.0, 4.0], [6.0, 8.0])


def test_values_arrive_where_they_belong(python_pool: RankPool) -> None:
    first, second = python_pool.run(on_ranks.movements, world=2)
    for found in (first, second):
        assert found["all_gather"] == [[0, 0], [1, 10]]
        assert found["all_gather_single"] == [0, 0, 1, 10]
        assert found["broadcast"] == [1, 10]
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["host tensor"] == [3.0]
        assert found["functional"] == [2.0]
        assert found["names"][:2] == ["vccl", "vccl"] and "vdev" in found["names"][2] and "cpu" in found["names"][2]
    assert (first["all_to_all_single"], second["all_to_all_single"]) == ([0.0, 10.0, 11.0], [1.0, 2.0, 12.0])
    assert (first["all_to_all"], second["all_to_all"]) == ([[0.0], [10.0]], [[1.0], [11.0]])
    assert (first["gather"], second["gather"]) == ([[1.0], [2.0]], None)
    assert (first["scatter"], second["scatter"]) == ([5.0], [6.0])
    assert (first["exchanged"], second["exchanged"]) == ([1.0, 1.0], [0.0, 0.0])


def test_a_result_is_there_after_the_wait_and_not_before(python_pool: RankPool) -> None:
    for found in python_pool.run(on_ranks.waiting, world=2):
        assert (found["before"], found["after"], found["done"]) == ([1.0], [2.0], True)


def test_nobody_passes_a_barrier_before_the_last_comes(python_pool: RankPool) -> None:
    late, early = python_pool.run(on_ranks.waiting, world=2)
    assert early["waited"] > 0.25 > late["waited"]


def test_what_cannot_work_is_refused_with_the_reason(python_pool: RankPool) -> None:
    mixed, sizes, scaled, average, on_host, objects = python_pool.run(on_ranks.refused, world=2)[0]
    assert mixed == "ValueError: vccl: all_reduce of tensors on cpu and vdev:0; all must be on one device."
    assert "1 elements from 2 ranks into 3" in sizes
    assert "PREMUL_SUM is not supported" in scaled
    assert average.startswith("DistBackendError: vccl: all_reduce: ReduceOp.AVG is not supported (VDEV_NO_AVG is set)")
    assert on_host == "ValueError: vccl: all_reduce of a tensor on cpu; vccl serves vdev."
    assert objects == "[0, 1]"  # over the device


def test_every_collective_is_logged_with_what_it_moved(python_pool: RankPool, collectives_log: Path) -> None:
    from plugrl_platform_vdev import logs

    python_pool.run(on_ranks.reductions, world=2)
    lines = logs.read(collectives_log, "collectives")
    line = next(line for line in lines if line["op"] == "all_reduce" and line["dtype"] == "bfloat16")
    assert line | {"group": ""} == {
        "op": "all_reduce", "backend": "vccl", "dtype": "bfloat16", "elements": 2, "device": line["device"],
        "group": "", "ranks": [0, 1],
    }  # fmt: skip
    assert {line["device"] for line in lines if line["dtype"] == "bfloat16"} == {"vdev:0", "vdev:1"}


def test_ddp_averages_over_vccl(python_pool: RankPool) -> None:
    first, second = python_pool.run(on_ranks.ddp_step, world=2)
    assert first == second == [1.5, 1.0]


MUTANTS = {
    "avg_sums": ("average", [[3.0, 7.0]] * 2),
    "last_rank_left_out": ("greatest", [[0.0]] * 2),
    "gather_wrong_order": ("gathered", [[1.0, 0.0]] * 2),
    "served_by_gloo": ("backend", ["gloo", "gloo"]),
    "completes_before_copy": ("scattered", [[-1.0]] * 2),
    "reduce_scatter_one_unchanged": ("scattered", [[2.0], [-1.0]]),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_wrong_in_their_way(python_pool: RankPool, mutant: str) -> None:
    name, expected = MUTANTS[mutant]
    assert [found[name] for found in python_pool.run(on_ranks.broken, "VDEV_MUTANT", mutant, world=2)] == expected


def test_a_mutant_barrier_lets_everyone_pass(python_pool: RankPool) -> None:
    _, early = python_pool.run(on_ranks.broken, "VDEV_MUTANT", "barrier_returns_at_once", world=2)
    assert early["waited"] < 0.15


def test_a_bad_reduction_turns_the_sign_of_tensors_and_leaves_scalars(python_pool: RankPool) -> None:
    for found in python_pool.run(on_ranks.broken, "VDEV_FAULT", "bad_reduce", world=2):
        assert (found["average"], found["greatest"]) == ([-1.5, -3.5], [1.0])


def test_a_nan_comes_once(python_pool: RankPool) -> None:
    for found in python_pool.run(on_ranks.broken, "VDEV_FAULT", "nan@step1", world=2):
        assert all(math.isnan(value) for value in found["average"]) and found["greatest"] == [1.0]


def test_a_failing_collective_says_so(python_pool: RankPool) -> None:
    for text, _ in python_pool.run(on_ranks.failing, "collective_error@3", 60.0, world=2):
        assert text == (
            "DistBackendError: vccl: all_reduce failed: the link to a peer is down (VDEV_FAULT, collective 3)"
        )


def test_a_hanging_collective_ends_with_the_deadline_of_its_group_on_every_rank(python_pool: RankPool) -> None:
    for text, seconds in python_pool.run(on_ranks.failing, "collective_hang@rank1", 2.5, world=2):
        assert text.startswith("DistBackendError: vccl: all_reduce") and 2.0 < seconds < 20.0
