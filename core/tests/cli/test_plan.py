"""`plugrl plan`: tables, bars, files and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugrl.cli.app import run

EXAMPLES = Path(__file__).parents[1] / "runtime" / "planner" / "planner_examples.json"


@pytest.fixture
def case_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes an example to a file, and lets the tables be wide."""
    monkeypatch.setenv("COLUMNS", "140")
    cases = {case["id"]: case for case in json.loads(EXAMPLES.read_text())["cases"]}

    def write(name: str) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(cases[name]))
        return str(path)

    return write


def test_a_case_is_solved_shown_and_written_and_the_plan_shows_the_same(
    case_file: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, chart = tmp_path / "plan.json", tmp_path / "plan.svg"
    assert run(["plan", case_file("v-swap"), "--output", str(plan), "--chart", str(chart)]) == 0
    shown = capfd.readouterr().out
    for wanted in ("2.197 s", "1.067 times", "inference 1 | actor 7", "15,423 of 16,965 MiB", "device 1-7  ", "11.2%"):
        assert wanted in shown, shown
    assert json.loads(plan.read_text())["result"]["best"] == "hybrid" and chart.read_text().startswith("<svg")
    assert run(["plan", str(plan)]) == 0
    assert capfd.readouterr().out.splitlines()[1:] == shown.splitlines()[1:]


def test_json_is_the_whole_plan(case_file: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", case_file("v-two-devices"), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["format"] == "plugrl-plan" and shown["result"]["best"] == "spatial"


def test_a_case_without_a_plan_shows_the_reasons_and_fails(case_file: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", case_file("v-infeasible")]) == 1
    shown = capfd.readouterr()
    assert "none: profile" in shown.out
    assert "actor needs at least 29084 MiB on each device" in shown.err and "Traceback" not in shown.err


def test_a_loop_shows_its_arrangement(case_file: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", case_file("v-loop-split")]) == 0
    assert "environment on 2, policy on 2 devices, in 2 slices, 2.764 s" in capfd.readouterr().out


def test_a_file_that_is_wrong_is_one_message(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.json"
    path.write_text('{"devices": 0}')
    assert run(["plan", str(path)]) == 1
    shown = capfd.readouterr().err
    assert "devices: must be a whole number" in shown and "components: is missing." in shown
    assert run(["plan", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capfd.readouterr().err


def test_options_that_do_not_go_together_are_one_message(case_file: Any, capfd: pytest.CaptureFixture[str]) -> None:
    quickstart = str(Path(__file__).parents[3] / "examples" / "quickstart.yaml")
    for arguments, wanted in (
        ([case_file("v-two-devices"), "--apply"], "--apply: is for a configuration"),
        ([case_file("v-two-devices"), "actor.optim.lr=1"], "actor.optim.lr=1: is for a configuration"),
        ([quickstart, "--apply", "--json"], "--apply: trains; print or draw the plan with a call of its own"),
        ([quickstart, "--from", "plan.json", "--devices", "2"], "--devices: is for a plan that is made now"),
    ):
        assert run(["plan", *arguments]) == 1
        assert wanted in capfd.readouterr().err
