"""The rules let runs of a healthy platform pass, whatever their noise, and name what a broken one does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from plugrl.acceptance.record import RunRecord
from plugrl.acceptance.rules import RuleResult, Thresholds, judge, spread

from .conftest import learning

REFERENCE = [sum(values) / 3 for values in zip(*(learning(seed=seed) for seed in (1, 2, 3)), strict=True)]


def record(rewards: list[float], **other: object) -> RunRecord:
    """A run that went through with these rewards."""
    return RunRecord(Path("run"), tuple(rewards), len(rewards), **other)  # type: ignore[arg-type]


def broken(found: RunRecord, planned: int = 100, thresholds: Thresholds | None = None) -> set[str]:
    """Names of the rules that do not hold."""
    return {rule.name for rule in judge(found, REFERENCE, planned, thresholds or Thresholds()) if not rule.passed}


def noisy(seed: int, curve: list[float]) -> list[float]:
    """A curve with the noise of drawn prompts."""
    draw = random.Random(seed)
    return [value + draw.gauss(0, 0.03) for value in curve]


def test_other_seeds_of_a_healthy_platform_pass() -> None:
    """1000 seeds at the noise of the quickstart, about which see docs/acceptance.md: at most 1 in 100 is refused."""
    failed = [seed for seed in range(1000) if broken(record(learning(seed=100 + seed)))]
    assert len(failed) <= 10, failed


STEPS = range(100)
FAULTS = {
    "learns nothing": ([0.45] * 100, {"trend", "shape", "gain", "distance"}),
    "gets worse": (
        [0.45 - 0.002 * step for step in STEPS],
        {"trend", "rise", "no_drop", "no_collapse", "shape", "gain"},
    ),
    "collapses late": ([REFERENCE[step] if step < 80 else 0.1 for step in STEPS], {"no_collapse", "no_drop", "gain"}),
    "loses half again": (
        [REFERENCE[step] if step < 60 else REFERENCE[60] - 0.008 * (step - 60) for step in STEPS],
        {"no_collapse", "gain", "distance"},
    ),
    "never starts": ([0.0] * 100, {"trend", "rise", "distance", "gain", "shape"}),
    "rises and stands still": ([min(value, 0.53) for value in REFERENCE], {"gain", "distance"}),
    "starts to learn late": ([REFERENCE[max(0, step - 40)] for step in STEPS], {"trend", "distance"}),
    "is too good": ([value + 0.2 for value in REFERENCE], {"distance"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_by_the_rules_that_are_meant_for_them(fault: str) -> None:
    """In each of 200 noisy runs at least one of those rules fails, and nearly always most of them."""
    curve, expected = FAULTS[fault]
    found = [broken(record(noisy(seed, curve) if any(curve) else list(curve))) for seed in range(200)]
    assert all(rules & expected for rules in found)
    assert sum(len(rules & expected) for rules in found) > 0.8 * len(expected) * len(found)


def test_a_run_that_ends_early_is_refused_and_judged_as_far_as_it_goes() -> None:
    found = record(learning(60, seed=5), error="WorkerDied: rank 1 is gone")
    rules = {rule.name: rule for rule in judge(found, REFERENCE, 100, Thresholds())}
    assert not rules["complete"].passed and rules["complete"].measured == 60
    assert "WorkerDied" in rules["complete"].note
    assert rules["trend"].passed and rules["distance"].passed
    assert rules["distance"].note == "over the 60 steps that there are"


@pytest.mark.parametrize("steps", [0, 3, 5, 19])
def test_a_run_too_short_to_judge_fails_with_the_reason(steps: int) -> None:
    rules = {rule.name: rule for rule in judge(record(learning(100)[:steps]), REFERENCE, 100, Thresholds())}
    assert rules["trend"].measured is None and not rules["trend"].passed
    assert rules["trend"].note == f"needs 20 steps, there are {steps}"
    assert not rules["no_drop"].passed


def test_a_short_run_is_compared_with_the_beginning_of_the_reference() -> None:
    assert not broken(record(learning(40, seed=8)), planned=40)


def test_only_the_steps_of_the_horizon_are_judged() -> None:
    later = record([*learning(100, seed=4), *[0.0] * 50])
    assert not broken(later, planned=150)
    assert broken(later, planned=150, thresholds=Thresholds(horizon=150)) >= {"no_collapse", "no_drop"}


def test_what_is_not_finite_or_skipped_is_refused() -> None:
    found = record(learning(seed=5), not_finite=("actor/pg_loss of step 7", "actor/loss of step 7"), skipped_steps=1)
    rules = {rule.name: rule for rule in judge(found, REFERENCE, 100, Thresholds())}
    assert rules["finite"].note == "actor/pg_loss of step 7 and 1 more"
    assert broken(found) == {"finite", "no_skipped_steps"}
    assert broken(found, thresholds=Thresholds(max_skipped_steps=1)) == {"finite"}


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("min_slope_t", 50.0, "trend"), ("min_rise", 0.5, "rise"), ("max_drop", 0.0, "no_drop"),
        ("max_fall", 0.0, "no_collapse"), ("max_distance", 0.0, "distance"), ("min_correlation", 1.0, "shape"),
        ("min_gain", 5.0, "gain"),
    ],
)  # fmt: skip
def test_every_threshold_decides_its_rule(name: str, value: float, rule: str) -> None:
    wavy = [value - (0.4 if 21 <= step < 25 else 0.0) for step, value in enumerate(learning(seed=5, noise=0.01))]
    assert rule not in broken(record(wavy), thresholds=Thresholds(max_drop=0.5, max_fall=0.5, min_correlation=0.5))
    wide = {"max_drop": 0.5, "max_fall": 0.5, "min_correlation": 0.5, name: value}
    assert rule in broken(record(wavy), thresholds=Thresholds(**wide))


def test_a_reference_that_does_not_rise_gives_no_gain_to_compare_with() -> None:
    rules = {rule.name: rule for rule in judge(record(learning()), [0.5] * 100, 100, Thresholds())}
    assert not rules["gain"].passed and not rules["shape"].passed


def test_an_infinite_slope_is_left_out_of_json() -> None:
    rule = RuleResult("trend", "slope", float("inf"), ">=", 2.0)
    assert rule.passed and rule.to_dict()["measured"] is None and rule.to_dict()["passed"]


def test_the_spread_of_seeds_is_what_each_keeps_from_the_others() -> None:
    assert spread([[1.0] * 6, [3.0] * 6], 5) == 2
    assert spread([[1.0] * 6], 5) is None
    assert spread([[1.0] * 4, [1.0] * 9], 5) is None
