"""The flow that a plan becomes takes exactly the time that the planner predicts, and needs no more than its words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugrl.testing.simulated import flow_of_plan

EXAMPLES = Path(__file__).parents[1] / "planner" / "planner_examples.json"


def plans() -> list[Any]:
    found = []
    for case in json.loads(EXAMPLES.read_text())["cases"]:
        if case["kind"] != "plan":
            continue
        by_mode = case["expected"]["by_mode"]
        solved = [(mode, plan, plan["time_us"]) for mode, plan in by_mode.items() if "phases" in plan]
        checked = [
            (f"evaluation {i}", one["plan"], one["result"]["time_us"])
            for i, one in enumerate(case.get("evaluations", []))
            if one["result"]["ok"]
        ]
        found += [pytest.param(case, plan, time, id=f"{case['id']}-{name}") for name, plan, time in solved + checked]
    return found


@pytest.mark.parametrize(("case", "plan", "time_us"), plans())
def test_a_plan_takes_the_predicted_time(case: Any, plan: Any, time_us: int) -> None:
    flow = flow_of_plan(case, plan)
    record = flow.on_a_virtual_clock()
    passing = any(len(stage["components"]) > 1 for phase in plan["phases"] for stage in phase["stages"])
    # Of a stage that several components share, the model lets a portion go when the last of them is done with it; the
    # flow lets others begin as soon as what they need is done, which may be earlier.
    assert record.makespan <= time_us if passing else record.makespan == time_us


def test_real_time_follows_the_virtual_clock() -> None:
    case = next(case for case in json.loads(EXAMPLES.read_text())["cases"] if case["id"] == "v-two-devices")
    flow = flow_of_plan(case, case["expected"]["by_mode"]["spatial"])
    predicted = flow.on_a_virtual_clock()
    measured = flow.in_real_time(0.4 / predicted.makespan)
    assert measured.makespan == pytest.approx(0.4, rel=0.2)
    assert measured.bubble_ratio == pytest.approx(predicted.bubble_ratio, abs=0.1)
