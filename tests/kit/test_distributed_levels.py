"""Levels L3 to L5: they pass on the processor and on the device for tests, and each finds what it is there to find.

At L3 the honest device and all wrong ones share two processes, because starting them takes longer than the checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plugrl.testing.fork_server import shared_server
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped, KitCheck, checks_of
from plugrl.testing.kit.conformance import Target, run_conformance, targets_of
from plugrl.testing.kit.context import Context
from plugrl.testing.kit.results import Report
from plugrl.testing.rank_pool import RankPool

MUTANTS = {
    "avg_sums": {"L3.all_reduce.avg", "L3.fsdp2.parity", "L3.fsdp2.mixed_precision", "L3.hsdp.parity"},
    "last_rank_left_out": {"L3.all_reduce.sum", "L3.all_reduce.max", "L3.ddp.parity"},
    "gather_wrong_order": {"L3.all_gather.order"},
    "barrier_returns_at_once": {"L3.barrier.waits"},
    "served_by_gloo": {"L3.group.backend"},
    "completes_before_copy": {"L3.all_reduce.wait", "L3.reduce_scatter.wait"},
    "reduce_scatter_one_unchanged": {"L3.reduce_scatter.parts", "L3.fsdp2.parity"},
}
"""Name of the wrong device -> the checks that must find it, among others perhaps."""

PRECISE = {
    "avg_sums": {"L3.barrier.waits", "L3.all_reduce.sum", "L3.all_reduce.max", "L3.p2p.both_ways", "L3.group.backend"},
    "gather_wrong_order": {"L3.all_reduce.sum", "L3.broadcast.from_any", "L3.group.backend", "L3.barrier.waits"},
    "barrier_returns_at_once": {"L3.all_reduce.sum", "L3.all_gather.order", "L3.object.any_size"},
    "served_by_gloo": {"L3.all_reduce.sum", "L3.barrier.waits", "L3.all_gather.order"},
}
"""Checks that have nothing to do with what is wrong, and must say so."""

Run = Callable[..., Report]


class _FixedContext(Context):
    """A context whose platform is given, so that this process loads no device."""

    platform: Any = None


def _context(platform: Any, name: str, folder: Path, pool: Any, declared: frozenset[str]) -> Context:
    kit = _FixedContext(level="L3", platform_name=name, plugin="", declared=declared, folder=folder)
    kit.platform = platform
    kit.cache["ranks"] = pool
    return kit


@pytest.fixture(scope="module")
def wrong(vdev: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Context, Any]]:
    """The context of L3 on vdev, and its pool, whose mutant a test chooses."""
    from rank_mutants import MutantPool

    from plugrl_platform_vdev.platform import VdevPlatform

    ranks = RankPool(2, platform="vdev", server=shared_server("torch"))
    pool = MutantPool(ranks)
    yield _context(VdevPlatform(), "vdev", tmp_path_factory.mktemp("l3"), pool, frozenset(vdev.declared)), pool
    ranks.close()


def outcome(check: KitCheck, kit: Context) -> str:
    """What a check says: empty if it passes."""
    try:
        check.body(kit)
    except CheckSkipped as error:
        return f"skipped: {error}"
    except CheckFailed as error:
        return str(error)
    return ""


# --------------------------------------------------------------------- L3
def test_two_ranks_of_the_device_for_tests_pass_every_check(wrong: tuple[Context, Any]) -> None:
    kit, pool = wrong
    pool.mutant = ""
    found = {check.id: outcome(check, kit) for check in checks_of("L3")}
    assert not any(found.values()), {name: text for name, text in found.items() if text}
    assert {check.capability for check in checks_of("L3")} <= kit.declared


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_collective_is_found_by_the_checks_that_are_there_for_it(
    wrong: tuple[Context, Any], mutant: str
) -> None:
    kit, pool = wrong
    pool.mutant = mutant
    for check in checks_of("L3"):
        if check.id in MUTANTS[mutant]:
            assert outcome(check, kit), f"{check.id} passes with {mutant}"
        elif check.id in PRECISE.get(mutant, ()):
            assert not outcome(check, kit), f"{check.id} has nothing to do with {mutant}"


def test_two_ranks_of_the_processor_pass_every_check_that_is_declared(ranks: RankPool, tmp_path: Path) -> None:
    from plugrl.platforms.cpu import CpuPlatform

    (target,) = targets_of("cpu")
    kit = _context(CpuPlatform(), "cpu", tmp_path, ranks, frozenset(target.declared))
    checks = [check for check in checks_of("L3") if check.capability in kit.declared]
    found = {check.id: outcome(check, kit) for check in checks}
    assert {name for name, text in found.items() if text} == {"L3.all_reduce.strided"}, found
    assert found["L3.all_reduce.strided"].startswith("skipped: ")


def test_a_rank_that_raises_and_one_that_dies_are_told_in_a_few_lines(ranks: RankPool, tmp_path: Path) -> None:
    from rank_failures import die, fail

    from plugrl.platforms.cpu import CpuPlatform
    from plugrl.testing.kit.l3_distributed import on_ranks

    kit = _context(CpuPlatform(), "cpu", tmp_path, ranks, frozenset())
    with pytest.raises(CheckFailed, match="rank 1 of 2[^$]*ValueError: the driver is gone") as failed:
        on_ranks(kit, fail)
    assert len(str(failed.value).splitlines()) < 15
    with pytest.raises(CheckFailed, match="the process ended[^$]*the last word"):
        on_ranks(kit, die)


# --------------------------------------------------------------------- L4 and L5, by the runner
def failures(report: Report) -> dict[str, str]:
    """Detail of each check that failed, by id."""
    return {result.id: result.detail for result in report.results if result.status == "failed"}


def wrong_module(name: str, platform: str, level: str, only: tuple[str, ...]) -> Report:
    """Run a level with an extension module of the folder ``mutants`` in driver and workers."""
    folder = str(Path(__file__).parent / "mutants")
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    (target,) = targets_of(platform)
    return run_conformance(target, (level,), only=only, env={"RLINF_EXT_MODULE": name, "PYTHONPATH": path})


@pytest.mark.slow
def test_ray_runs_on_the_device_for_tests(run: Run) -> None:
    report = run("L4")
    assert report.passed and report.counts == {"supported": 11}, report.results


@pytest.mark.slow
def test_training_runs_on_the_device_for_tests(run: Run) -> None:
    report = run("L5")
    assert report.passed and report.counts == {"supported": 5}, report.results


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L3", "L4", "L5"])
def test_the_processor_conforms(level: str) -> None:
    (target,) = targets_of("cpu")
    report = run_conformance(target, (level,))
    assert report.passed, report.results
    assert not report.counts.get("blocked") and not report.counts.get("failed")


@pytest.mark.slow
def test_workers_on_one_device_are_found(run: Run) -> None:
    found = failures(run("L4", VDEV_MUTANT="two_workers_one_index"))
    assert "two workers have one device" in found.pop("L4.index.distinct")
    assert not found.keys() - {"L4.visible_env.preset"}


@pytest.mark.slow
def test_an_sdk_that_is_loaded_too_early_is_found(vdev: Target) -> None:
    report = wrong_module("kit_early_sdk", "vdev", "L4", ("L4.session.starts", "L4.visible_env.before_sdk"))
    assert "was loaded in rank 0 before the worker took its device" in failures(report)["L4.visible_env.before_sdk"]


@pytest.mark.slow
def test_weights_that_are_one_step_behind_are_found() -> None:
    found = failures(wrong_module("kit_stale_weights", "cpu", "L5", ()))
    assert "has other weights" in found["L5.weight_sync.bit_equal"]
    assert "a probability differs" in found["L5.grpo.first_ratio"]


@pytest.mark.slow
def test_an_optimizer_that_is_not_restored_is_found() -> None:
    found = failures(wrong_module("kit_forgets_optimizer", "cpu", "L5", ()))
    assert found.keys() == {"L5.resume.exact"} and "differs" in found["L5.resume.exact"]


@pytest.mark.slow
def test_without_an_engine_training_is_skipped_with_the_command_that_helps() -> None:
    (target,) = targets_of("cpu")
    report = run_conformance(target, ("L5",), env={"PLUGRL_PLUGINS": "-engine_fsdp"})
    assert not report.passed and not report.executed
    assert all("pip install plugrl-engine-fsdp" in result.detail for result in report.results if result.capability)
