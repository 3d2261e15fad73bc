"""The tests of the tests: a device that is wrong on purpose fails the check that is there to find it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plugrl.testing.kit.results import Report

MUTANTS = {
    "wrong_device_index": ("L1.devices.placement", "vdev:0"),
    "index_7_accepted": ("L1.index.torch_refuses", "is accepted"),
    "mixed_devices_accepted": ("L1.mixed.two_devices", "is accepted"),
    "mask_ignored": ("L1.visible_env.subset", "the number of devices with the mask"),
    "seed_ignored": ("L1.rng.seed_reproduces", "differs after the same seed"),
    "rng_state_ignored": ("L1.rng.state_round_trip", "rng_state() differs"),
    "cpu_rng_moved": ("L1.rng.host_untouched", "moves the host's generator"),
    "lying_memory_counter": ("L1.memory.rises_and_falls", "memory_allocated after an allocation"),
    "shared_memory_counter": ("L1.memory.per_device", "add to device 1"),
    "bf16_in_fp32": ("L2.bf16.is_bf16", ""),
    "autocast_casts_not": ("L2.autocast.casts", "torch.bfloat16"),
    "wrong_conv_gradient": ("L2.conv.fp32", "the gradient of weight"),
    "load_wrong_index": ("L2.ckpt.native_load", "the device of a tensor saved on device"),
}
"""Name of the mutant -> the check that finds it, and what its result speaks of."""

FAULTS = {
    "memory_leak": ("L1.memory.rises_and_falls", "were freed"),
    "stale_rng": ("L1.rng.seed_reproduces", "the same numbers twice"),
}
"""The same for faults of the device that a check of the kit finds as well."""

SLOW = {"mask_ignored", "lying_memory_counter", "load_wrong_index", "shared_memory_counter", "autocast_casts_not"}
QUICK = tuple(name for name in MUTANTS if name not in SLOW)
"""Those that are run by default, each by its check alone."""

Run = Callable[..., Report]


def found_by(report: Report, check: str) -> str:
    """What the failing check says; empty if it passes."""
    (result,) = (result for result in report.results if result.id == check)
    return result.detail if result.status == "failed" else ""


@pytest.mark.parametrize("mutant", QUICK)
def test_the_check_that_is_there_for_it_finds_the_mutant(run: Run, mutant: str) -> None:
    check, words = MUTANTS[mutant]
    report = run(check.partition(".")[0], only=(check,), VDEV_MUTANT=mutant)
    assert words in found_by(report, check) and not report.passed, report.results


def test_the_honest_device_passes_the_checks_that_find_mutants(run: Run) -> None:
    for level in ("L1", "L2"):
        only = tuple(MUTANTS[mutant][0] for mutant in QUICK if MUTANTS[mutant][0].startswith(level))
        report = run(level, only=only)
        assert report.passed and report.executed == len(set(only)), report.results


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_whole_run_finds_the_mutant_at_its_level_and_nothing_before(run: Run, mutant: str) -> None:
    check, words = MUTANTS[mutant]
    report = run("L1", "L2", VDEV_MUTANT=mutant)
    assert words in found_by(report, check), report.results
    failing = {result.level for result in report.results if result.status == "failed"}
    assert min(failing) == check.partition(".")[0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_device_is_found(run: Run, fault: str) -> None:
    check, words = FAULTS[fault]
    assert words in found_by(run("L1", only=(check,), VDEV_FAULT=fault), check)
