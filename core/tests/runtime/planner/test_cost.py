"""The cost of a plan, by formula and on the virtual clock, and the order of the rules."""

from __future__ import annotations

import random
from typing import Any

import pytest

from plugrl.runtime.planner import Case, Plan, evaluate, phase_costs, simulate, spans


def component(name: str, **changes: Any) -> dict[str, Any]:
    """A component on one or two devices, in chunks of 2 and 4."""
    row = {"1": 10, "2": 6}
    table = {"1": {"2": 5, "4": 8}, "2": {"2": 3, "4": 5}}
    base = {"name": name, "time_us": table, "resident_mib": row, "work_mib": table, "onload_us": row, "offload_us": row}
    return {**base, **changes}


def case(**changes: Any) -> dict[str, Any]:
    """Three components in a chain on three devices."""
    base = {
        "devices": 3, "items": 4, "chunks": [2, 4], "capacity_mib": 40,
        "components": [component(name) for name in "abc"], "edges": [["a", "b"], ["b", "c"]],
    }  # fmt: skip
    return {**base, **changes}


def phase(chunk: int, *stages: tuple[str, int]) -> dict[str, Any]:
    """A phase; each stage is the letters of its components and its devices."""
    return {"chunk": chunk, "stages": [{"components": list(names), "devices": n} for names, n in stages]}


def test_the_clock_agrees_with_the_formula_on_random_plans(cases: Any) -> None:
    draw = random.Random(1)
    modes: dict[str, int] = {}
    seed = 0
    while sum(modes.values()) < 200:
        seed += 1
        drawn = cases.random_case(seed, components=2 + seed % 4, devices=3 + seed % 6)
        drawn["capacity_mib"] *= 3
        plan = cases.random_plan(drawn, draw)
        verdict = evaluate(drawn, plan)
        assert simulate(drawn, plan) == verdict, (seed, plan)
        if verdict["ok"]:
            modes[verdict["mode"]] = modes.get(verdict["mode"], 0) + 1
    assert len(modes) == 3 and min(modes.values()) > 10, modes


@pytest.mark.parametrize(
    ("plan", "violation"),
    [
        ({"phases": [phase(3, ("ab", 9))]}, "cover"),
        ({"phases": [phase(3, ("abcc", 9))]}, "cover"),
        ({"phases": [phase(3, ("abcd", 9))]}, "cover"),
        ({"phases": [phase(3, ("abc", 9))], "swapped": ["d"]}, "cover"),
        ({"phases": [phase(3, ("ac", 9)), phase(3, ("b", 9))]}, "order"),
        ({"phases": [phase(3, ("ac", 9), ("b", 9))]}, "cycle"),
        ({"phases": [phase(3, ("abc", 9))]}, "shape"),
        ({"phases": [phase(3, ("ab", 0), ("c", 1))]}, "devices"),
        ({"phases": [phase(3, ("ab", 2), ("c", 2))]}, "devices"),
        ({"phases": [phase(3, ("ab", 2), ("c", 1))]}, "profile"),
        ({"phases": [phase(2, ("a", 3)), phase(2, ("b", 1), ("c", 1))]}, "profile"),
        ({"phases": [phase(4, (name, 1)) for name in "abc"]}, ""),
        ({"phases": [phase(4, ("a", 1), ("b", 1), ("c", 1))]}, ""),
    ],
)
def test_the_first_rule_that_a_plan_breaks_is_named(plan: dict[str, Any], violation: str) -> None:
    assert evaluate(case(), plan).get("violation", "") == violation


def test_memory_counts_what_other_phases_leave_loaded() -> None:
    plan = {"phases": [phase(4, ("a", 1)), phase(4, ("b", 1), ("c", 2))]}
    # The larger of the phases needs 10 + 8, and 10 stay of the other one.
    assert evaluate(case(capacity_mib=28), plan)["ok"]
    assert evaluate(case(capacity_mib=27), plan) == {"ok": False, "violation": "memory"}
    assert evaluate(case(capacity_mib=27), {**plan, "swapped": ["a", "b"]})["ok"]


def test_loading_is_the_slowest_stage_and_only_of_swapped_components() -> None:
    plan = Plan.from_dict({"phases": [phase(2, ("ab", 1), ("c", 2))], "swapped": ["a", "b", "c"]})
    [cost] = phase_costs(Case.from_dict(case()), plan)
    assert (cost.load_us, cost.pipe_us, cost.unload_us) == (20, 10 + 3 + 10, 20)
    assert (cost.peak_mib, cost.time_us) == (25, 63)


def test_spans_of_one_device_never_overlap_and_take_as_long_as_they_should(cases: Any) -> None:
    draw = random.Random(7)
    checked = 0
    for seed in range(60):
        drawn = cases.random_case(seed, components=3, devices=4)
        drawn["capacity_mib"] *= 4
        plan = cases.random_plan(drawn, draw)
        if not evaluate(drawn, plan)["ok"]:
            continue
        done = list(spans(Case.from_dict(drawn), Plan.from_dict(plan)))
        for device in range(drawn["devices"]):
            mine = sorted((s.start, s.end) for s in done if s.first_device <= device < s.first_device + s.devices)
            assert all(end <= start for (_, end), (start, _) in zip(mine, mine[1:], strict=False)), (seed, device)
        computed = {(s.component, s.chunk) for s in done if s.work == "compute"}
        repeats = [(drawn["items"] // one["chunk"], one["stages"]) for one in plan["phases"]]
        expected = sum(count * len(stage["components"]) for count, stages in repeats for stage in stages)
        assert len(computed) == expected
        checked += 1
    assert checked > 10
