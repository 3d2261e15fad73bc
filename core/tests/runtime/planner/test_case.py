"""Case and plan files that are wrong: one message, every problem with its path."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from plugrl.errors import ConfigError
from plugrl.runtime.planner import Case, NoPlan, Plan, evaluate, require_plan, solve, solve_case, solve_loop


def test_a_case_survives_its_json_form(examples: dict[str, Any]) -> None:
    for case in examples.values():
        if case["kind"] == "plan":
            read = Case.from_dict(case)
            assert Case.from_dict(json.loads(json.dumps(read.to_dict()))) == read


def test_all_problems_of_a_case_are_told_at_once_with_their_paths(examples: dict[str, Any]) -> None:
    case = copy.deepcopy(examples["v-two-devices"])
    case["chunks"] = [4, 3, 64]
    case["devices"] = 0
    del case["capacity_mib"]
    case["capacity_mb"] = 5
    rollout, actor = case["components"]
    rollout["time_us"]["1"]["4"] = -1
    rollout["resident_mib"].pop("2")
    actor["name"] = "a,b"
    actor["work_mib"]["2"].pop("8")
    case["edges"] = [["rollout", "acter"], ["a,b", "rollout"]]
    with pytest.raises(ConfigError) as caught:
        solve(case)
    text = str(caught.value)
    for wanted in (
        "devices: must be a whole number of at least 1, not 0.",
        "chunks[1]: 3 does not divide the 32 items.",
        "chunks[1]: chunks must ascend, and 3 follows 4.",
        "chunks[2]: 64 does not divide the 32 items.",
        "capacity_mib: is missing. Is it 'capacity_mb', which is not a field?",
        "components[0].time_us.1.4: must be a whole number of at least 0, not -1.",
        "components[0].resident_mib.2: is missing: time_us has 2 devices.",
        "components[1].name: 'a,b' holds a comma",
        "components[1].work_mib.2: lacks chunks of 8, which time_us has.",
        "edges[0]: there is no component 'acter'",
        "edges[1]: 'rollout' must stand after 'a,b'",
    ):
        assert wanted in text, text
    assert len(text.splitlines()) == 11


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"components": []}, "components: must not be empty."),
        ({"components": "x"}, "components: must be a list, not 'x'."),
        ({"chunks": []}, "chunks: must not be empty."),
        ({"devices": True}, "devices: must be a whole number of at least 1, not True."),
        ({"items": 2.5}, "items: must be a whole number"),
        ({"edges": [["rollout"]]}, "edges[0]: must be a pair of names"),
        ({"edges": [["rollout", "rollout"]]}, "edges[0]: 'rollout' must stand after 'rollout'"),
        ({"kind": "loop"}, "kind: must be 'plan', not 'loop'"),
        ({"loops": [{"env": "rollout", "policy": "nobody", "rounds": 2, "slices": [1]}]}, "loops[0].policy: there is"),
        ({"loops": [{"env": "rollout", "policy": "rollout", "rounds": 0}]}, "loops[0].rounds: must be a whole number"),
    ],
)
def test_a_wrong_field_is_named(examples: dict[str, Any], change: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        solve({**examples["v-two-devices"], **change})
    assert wanted in str(caught.value)


@pytest.mark.parametrize("value", [None, [], 3, "case"])
def test_what_is_no_mapping_is_no_case(value: Any) -> None:
    for read in (solve, solve_loop, Plan.from_dict):
        with pytest.raises(ConfigError, match="must be a mapping"):
            read(value)


def test_numbers_as_keys_are_read_too_and_wrong_keys_are_named(examples: dict[str, Any]) -> None:
    case = copy.deepcopy(examples["v-two-devices"])
    for component in case["components"]:
        for key in ("resident_mib", "onload_us", "offload_us"):
            component[key] = {int(n): value for n, value in component[key].items()}
    assert solve(case) == examples["v-two-devices"]["expected"]
    case["components"][0]["resident_mib"] = {"1": 1, "2": 1, "01": 1, "x": 1, "0": 1}
    with pytest.raises(ConfigError) as caught:
        solve(case)
    assert "resident_mib.01: 1 stands there twice." in str(caught.value)
    for key in ("x", "0"):
        assert f"resident_mib.{key}: the key must be a positive whole number." in str(caught.value)


def test_a_plan_without_structure_is_an_error_and_not_a_verdict(examples: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        evaluate(examples["v-tie"], {"phases": [{"chunk": "4", "stages": [{"components": [], "devices": 1}]}, {}]})
    text = str(caught.value)
    empty = "phases[0].stages[0].components: must not be empty."
    for wanted in ("phases[0].chunk:", empty, "phases[1].stages: is missing"):
        assert wanted in text


def test_a_table_full_of_mistakes_does_not_fill_the_screen(examples: dict[str, Any]) -> None:
    case = copy.deepcopy(examples["v-reasoning-128"])
    for row in case["components"][0]["time_us"].values():
        row.update(dict.fromkeys(row, -1))
    with pytest.raises(ConfigError) as caught:
        solve(case)
    assert len(str(caught.value).splitlines()) == 21 and "more problems" in str(caught.value)


def test_no_plan_is_an_error_with_the_reason_of_each_class_and_the_tightest_need(examples: dict[str, Any]) -> None:
    case = Case.from_dict(examples["v-infeasible"])
    with pytest.raises(NoPlan) as caught:
        require_plan(case, solve_case(case))
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.reasons == {"temporal": "memory", "spatial": "profile", "hybrid": "memory"}
    tight = error.tightest
    component = next(c for c in case.components if c.name == tight.component)
    need = component.resident_mib[tight.devices] + component.work_mib[tight.devices][tight.chunk]
    assert tight.mib == need > case.capacity_mib
    assert f"{tight.component} needs at least {need} MiB" in str(error) and "temporal: memory" in str(error)


def test_without_any_profile_the_error_names_no_need(examples: dict[str, Any]) -> None:
    data = copy.deepcopy(examples["v-two-devices"])
    for component in data["components"]:
        component["time_us"] = {}
    case = Case.from_dict(data)
    with pytest.raises(NoPlan) as caught:
        require_plan(case, solve_case(case))
    assert caught.value.tightest is None and caught.value.reasons["temporal"] == "profile"
