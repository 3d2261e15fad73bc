"""The solved examples, every value of them."""

from __future__ import annotations

from typing import Any

from plugrl.runtime.planner import evaluate, simulate, solve, solve_loop


def test_every_example_has_the_expected_result(examples: dict[str, Any]) -> None:
    assert len(examples) == 13
    for name, case in examples.items():
        found = solve_loop(case) if case["kind"] == "loop" else solve(case)
        assert found == case["expected"], name


def test_every_evaluation_has_the_expected_verdict_by_formula_and_by_clock(examples: dict[str, Any]) -> None:
    checked = 0
    for name, case in examples.items():
        for given in case.get("evaluations", ()):
            assert evaluate(case, given["plan"]) == given["result"], (name, given)
            assert simulate(case, given["plan"]) == given["result"], (name, given)
            checked += 1
    assert checked > 30


def test_the_plans_that_were_found_have_the_time_that_was_found(examples: dict[str, Any]) -> None:
    for case in examples.values():
        for found in case["expected"].get("by_mode", {}).values():
            if "infeasible" not in found:
                verdict = {"ok": True, "time_us": found["time_us"], "mode": found["mode"]}
                assert evaluate(case, found) == simulate(case, found) == verdict
