"""What a run does with requests to scale a component, without processes: what is refused, and who is told."""

import json
import os
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from plugrl.config import load_config
from plugrl.errors import RuntimeTimeout, UserError
from plugrl.runners.elastic import Scaler, with_placement
from plugrl.tracking.control import ControlFolder, ScaleAnswer, ScaleRequest


def test_one_component_of_several_under_a_key_goes_elsewhere(tmp_path):
    content = {
        "model": {"model_type": "causal_lm", "path": "x"},
        "data": {"source": "arithmetic"},
        "reward": {"name": "exact_match"},
        "cluster": {"component_placement": {"actor, rollout": "0-1", "ref": 2}},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(content))
    config = with_placement(load_config(tmp_path / "run.yaml"), "rollout", "3")
    assert config.cluster.component_placement == {"actor": "0-1", "rollout": "3", "ref": 2}


def test_a_request_is_taken_once_and_its_answer_reaches_who_asked(tmp_path):
    run, other = ControlFolder(tmp_path), ControlFolder(tmp_path)
    name = other.ask(ScaleRequest(component="actor", devices="0-1"))
    assert (tmp_path / "control").stat().st_mode & 0o077 == 0, "others may read or write the requests"
    assert run.take() == (name, ScaleRequest(component="actor", devices="0-1"))
    run.answer(name, ScaleAnswer(state="creating", message="soon"))
    assert run.take() is None
    said = []

    def say(text: str) -> None:
        said.append(text)
        run.answer(name, ScaleAnswer(state="done", message="done"))

    assert other.wait(name, 5, say, lambda: True) == ScaleAnswer(state="done", message="done")
    assert said == ["soon"] and list((tmp_path / "control").iterdir()) == []


def test_waiting_ends_with_the_run_and_with_the_time(tmp_path):
    folder = ControlFolder(tmp_path)
    with pytest.raises(UserError, match="ended before it did what was asked"):
        folder.wait(folder.ask(ScaleRequest(component="actor", devices="0")), 5, print, lambda: False)
    with pytest.raises(RuntimeTimeout, match=r"did not answer within 0\.3 s"):
        folder.wait(folder.ask(ScaleRequest(component="actor", devices="0")), 0.3, print, lambda: True)
    assert folder.take() is None, "what was given up is still asked for"


def test_a_request_that_was_left_behind_is_not_done_by_a_later_run(tmp_path):
    folder = ControlFolder(tmp_path)
    name = folder.ask(ScaleRequest(component="actor", devices="0", timeout_s=60))
    os.utime(folder.path / f"{name}.request.json", (0, 0))
    assert folder.take() is None and list(folder.path.iterdir()) == []


def test_what_is_no_request_is_passed_over(tmp_path):
    folder = ControlFolder(tmp_path)
    real = folder.ask(ScaleRequest(component="ref", devices="1"))
    (folder.path / "0.request.json").write_text("{")
    (folder.path / "1.request.json").write_text('{"component": "actor", "devices": "0", "run": "rm"}')
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(ScaleRequest(component="actor", devices="0").model_dump_json())
    os.symlink(elsewhere, folder.path / "2.request.json")
    assert folder.take() == (real, ScaleRequest(component="ref", devices="1"))


def test_a_component_that_does_not_run_is_refused_and_the_run_goes_on(tmp_path, caplog):
    components = SimpleNamespace(actor=object(), rollout=object(), ref=None, critic=None)
    scaler = Scaler(SimpleNamespace(components=components), ControlFolder(tmp_path))
    asking = ControlFolder(tmp_path)
    name = asking.ask(ScaleRequest(component="critc", devices="0"))
    assert scaler.between_steps(2) is None
    answer = asking.wait(name, 5, print, lambda: True)
    assert answer.state == "failed" and "No component 'critc' runs here; there are: actor, rollout." in answer.message
    scaler.request("critic", "0")
    assert scaler.between_steps(3) is None and "critic was not scaled" in caplog.text
    waiting = asking.ask(ScaleRequest(component="actor", devices="0"))
    scaler.close()
    assert asking.wait(waiting, 5, print, lambda: True).message == "training ended first"


def test_a_new_plan_asks_for_what_stands_elsewhere(tmp_path):
    content = {
        "model": {"model_type": "causal_lm", "path": "x"},
        "data": {"source": "arithmetic"},
        "reward": {"name": "exact_match"},
        "cluster": {"component_placement": {"actor": "0-1", "rollout": "2", "ref": "3"}},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(content))
    run = SimpleNamespace(
        config=load_config(tmp_path / "run.yaml"),
        components=SimpleNamespace(devices={"actor": (0, 1), "rollout": (2,), "ref": (3,)}),
    )
    scaler = Scaler(run, ControlFolder(tmp_path))
    assert scaler.request_placement({"actor, rollout": "0-3", "ref": "3"}) == ["actor", "rollout"]
    assert scaler.request_placement({"ref": "3"}) == []
