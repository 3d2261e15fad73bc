"""Plans as keys of a configuration, as files and as bars; drift; cases from profiles."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from plugrl.errors import ConfigError
from plugrl.runtime.planner import (
    Case,
    ComponentProfile,
    DriftMonitor,
    Loading,
    Plan,
    Point,
    Profile,
    artefact_from_dict,
    case_from_profile,
    evaluate,
    make_artefact,
    plan_from_keys,
    plan_to_keys,
    solve,
    write_artefact,
)
from plugrl.runtime.planner.artefact import hash_of, read_json
from plugrl.runtime.planner.chart import chart_lines, chart_svg, device_rows


def hybrid() -> Plan:
    """Environment and rollout side by side, then the actor on all devices."""
    return Plan.from_dict(
        {
            "phases": [
                {"chunk": 8, "stages": [{"components": [name], "devices": 2} for name in ("env", "rollout")]},
                {"chunk": 64, "stages": [{"components": ["actor"], "devices": 4}]},
            ],
            "swapped": ["actor"],
        }
    )


# ------------------------------------------------------------------------------------------------------ configuration
def test_a_plan_becomes_contiguous_ranges_and_a_flow() -> None:
    assert plan_to_keys(hybrid()) == {
        "cluster": {"component_placement": {"env": "0-1", "rollout": "2-3", "actor": "0-3"}},
        "flow": {
            "phases": [{"chunk": 8, "stages": [["env"], ["rollout"]]}, {"chunk": 64, "stages": [["actor"]]}],
            "swapped": ["actor"],
        },
    }


def test_a_plan_read_back_from_its_keys_is_the_same(cases: Any) -> None:
    draw = random.Random(2)
    checked = 0
    for seed in range(80):
        case = cases.random_case(seed, devices=6)
        plan = cases.random_plan(case, draw)
        if evaluate(case, plan).get("violation") in (None, "memory", "profile"):
            keys = json.loads(json.dumps(plan_to_keys(Plan.from_dict(plan))))
            back = plan_from_keys(keys["cluster"]["component_placement"], keys["flow"], 6)
            assert back == Plan.from_dict(plan)
            checked += 1
    assert checked > 40


def test_keys_that_are_written_otherwise_and_mean_the_same_are_read() -> None:
    flow = {"chunk": 64, "phases": [{"chunk": 8, "stages": [["env"], ["rollout"]]}, {"stages": [["actor"]]}]}
    placement = {"env": [0, 1], "rollout": " 2 - 3 ", "actor": "all"}
    assert plan_from_keys(placement, {**flow, "swapped": ["actor"]}, 4) == hybrid()


def test_keys_that_make_no_plan_are_named() -> None:
    flow = {"phases": [{"chunk": 8, "stages": [["env"], ["rollout", "critic"], ["nobody"]]}, {"stages": [["actor"]]}]}
    placement = {"env": "0-1", "rollout": "2-3", "critic": "1-3", "actor": "0-3:0-1"}
    with pytest.raises(ConfigError) as caught:
        plan_from_keys(placement, flow, 4)
    text = str(caught.value)
    for wanted in (
        "flow.phases[0].stages[1]: 'critic' begins at device 1, and this stage at device 2.",
        "flow.phases[0].stages[2]: 'nobody' has no place in cluster.component_placement.",
        "flow.phases[1].chunk: must be",
        "cluster.component_placement.actor: '0-3:0-1' is no contiguous range",
    ):
        assert wanted in text, text


# -------------------------------------------------------------------------------------------------------------- files
def test_an_artefact_survives_its_file_and_knows_its_configuration(examples: dict[str, Any], tmp_path: Path) -> None:
    artefact = make_artefact(examples["v-swap"], {"b": 1, "a": [2]})
    path = tmp_path / "plan.json"
    write_artefact(artefact, path)
    assert artefact_from_dict(read_json(path)) == artefact
    assert artefact.configuration == hash_of({"a": [2], "b": 1}) != hash_of({"a": [3], "b": 1})
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    assert artefact.best == Plan.from_dict(examples["v-swap"]["expected"]["by_mode"]["hybrid"])
    assert artefact.plan_of("spatial") == Plan.from_dict(examples["v-swap"]["expected"]["by_mode"]["spatial"])


def test_what_is_no_plan_or_of_another_model_is_refused(examples: dict[str, Any], tmp_path: Path) -> None:
    data = make_artefact(examples["v-tie"]).to_dict()
    with pytest.raises(ConfigError, match="this is no plan"):
        artefact_from_dict({**data, "format": "x"})
    with pytest.raises(ConfigError, match="cost model 99.*plan again"):
        artefact_from_dict({**data, "versions": {"cost_model": 99}})
    path = tmp_path / "x.json"
    for text, message in (("{", "is no JSON"), ("[]", "must hold a mapping")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_json(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path / "none.json")


# --------------------------------------------------------------------------------------------------------------- bars
def test_bars_show_every_device_once_and_what_it_does(examples: dict[str, Any]) -> None:
    for name, case in examples.items():
        for found in case["expected"].get("by_mode", {}).values():
            if "infeasible" in found:
                continue
            typed, plan = Case.from_dict(case), Plan.from_dict(found)
            rows = device_rows(typed, plan, 50)
            devices = [device for row in rows for device in range(row.first, row.last + 1)]
            assert devices == list(range(case["devices"])), name
            assert all(len(row.cells) == 50 for row in rows)
            root = ElementTree.fromstring(chart_svg(typed, plan, title="<plan>"))
            assert root.tag.endswith("svg")


def test_bars_follow_the_clock() -> None:
    components = [
        {"name": name, "time_us": {"1": {"1": 10}}, "resident_mib": {"1": 0}, "work_mib": {"1": {"1": 0}},
         "onload_us": {"1": 5}, "offload_us": {"1": 5}} for name in ("rollout", "reward")
    ]  # fmt: skip
    case = Case.from_dict(
        {"devices": 3, "items": 3, "chunks": [1], "capacity_mib": 0, "components": components,
         "edges": [["rollout", "reward"]]}
    )  # fmt: skip
    stages = [{"components": [name], "devices": 1} for name in ("rollout", "reward")]
    plan = Plan.from_dict({"phases": [{"chunk": 1, "stages": stages}], "swapped": ["reward"]})
    assert chart_lines(case, plan, columns=10) == [
        "0 .rrrrrr...",
        "1 +..eeeeee-",
        "2 ..........",
        "  r rollout  e reward  + loading  - unloading  . idle",
    ]


# -------------------------------------------------------------------------------------------------------------- drift
def test_drift_is_told_after_five_steps_in_a_row_beyond_fifteen_percent() -> None:
    monitor = DriftMonitor([100, 1000])
    for _ in range(4):
        assert monitor.observe([116, 1000]) is None
    assert monitor.observe([115, 1000]) is None, "fifteen percent are no drift, and the count begins anew"
    for _ in range(4):
        assert monitor.observe([116, 1000]) is None
    drift = monitor.observe([120, 1000])
    assert drift is not None and (drift.phase, drift.steps) == (0, 5)
    assert drift.ratio == pytest.approx(1.168) and "plan again" in str(drift)


def test_faster_phases_drift_too_but_not_those_that_swing() -> None:
    monitor = DriftMonitor([100])
    assert [monitor.observe([80]) for _ in range(5)][-1] is not None
    swinging = DriftMonitor([100])
    assert all(swinging.observe([80 if step % 2 else 120]) is None for step in range(20))
    with pytest.raises(ValueError, match="1 phases were predicted and 2 measured"):
        monitor.observe([1, 2])


# ----------------------------------------------------------------------------------------------------------- profiles
def profile() -> Profile:
    """A component measured on 1 and 4 devices, in chunks of 4 and 16."""
    points = tuple(Point(n, m, 100 + 80 * m // n, 10 * m // n) for n in (1, 4) for m in (4, 16))
    loadings = (Loading(1, 400, 40, 30), Loading(4, 100, 10, 9))
    return Profile((ComponentProfile("actor", points, loadings),))


def profiled(**changes: Any) -> Any:
    """The case of the profile on eight devices."""
    given = {"devices": 8, "items": 32, "chunks": [4, 8, 16, 32], "capacity_mib": 1000, "edges": []}
    return case_from_profile(profile(), **{**given, **changes})


def test_a_case_from_a_profile_keeps_what_was_measured_and_marks_the_rest() -> None:
    found = profiled()
    actor = found.case.components[0]
    assert actor.time_us[1][4] == 420 and actor.time_us[4][16] == 420 and actor.resident_mib[4] == 100
    assert actor.time_us[1][8] == 740 and actor.time_us[2][16] == 740, "linear in the chunk and in 1/n"
    assert ("actor", 2, 8) in found.interpolated and ("actor", 8, 4) in found.extrapolated
    assert ("actor", 1, 4) not in found.interpolated | found.extrapolated
    assert evaluate(found.case.to_dict(), solve(found.case.to_dict())["by_mode"]["temporal"])["ok"]


def test_nothing_is_used_beyond_the_memory_that_was_measured() -> None:
    found = profiled()
    assert ("actor", 1, 32) in found.left_out and 32 not in found.case.components[0].time_us[1]
    assert 32 in found.case.components[0].time_us[4]
    for component in found.case.components:
        for n, row in component.work_mib.items():
            assert all(component.resident_mib[n] + work <= 400 + 160 for work in row.values())


def test_only_the_numbers_of_devices_that_a_component_can_run_on_are_used() -> None:
    found = profiled(device_counts={"actor": [2, 4, 16]})
    assert sorted(found.case.components[0].time_us) == [2, 4]


def test_a_profile_that_is_incomplete_or_an_edge_to_nobody_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no component 'critic'"):
        profiled(edges=[("actor", "critic")])
    for broken, message in (
        (ComponentProfile("actor", (), ()), "has no measured point"),
        (ComponentProfile("actor", (Point(2, 4, 1, 1),), ()), "not measured on 2 devices"),
    ):
        with pytest.raises(ConfigError, match=message):
            case_from_profile(Profile((broken,)), devices=2, items=4, chunks=[4], capacity_mib=1, edges=[])
