"""Real runs under several plans: the same numbers step by step, off-loading, sampling ahead, a timeline."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.slow

EXACT: dict[str, dict[str, Any]] = {
    "disaggregated": {"cluster": {"component_placement": {"actor": "0-1", "rollout": 2, "ref": 3}}},
    "collocated": {"cluster": {"component_placement": {"actor": "0-1", "rollout": 0, "ref": 0}}},
    "hybrid": {"cluster": {"component_placement": {"actor": "0-1", "rollout": 0, "ref": 1}}},
    "swapped": {
        "cluster": {"component_placement": {"actor": "0-1", "rollout": 0, "ref": 1}},
        "flow": {"swapped": ["rollout", "actor"]},
    },
}
"""All in one portion: the same micro-batches everywhere."""

PORTIONS: dict[str, dict[str, Any]] = {
    "disaggregated": {"chunk": 2},
    "hybrid": {"phases": [{"chunk": 4, "stages": [["rollout"], ["ref"]]}, {"chunk": 2, "stages": [["actor"]]}]},
    "collocated": {"phases": [{"chunk": 2, "stages": [["rollout", "ref"]]}, {"stages": [["actor"]]}]},
}
"""Other portions and phases: other micro-batches for the log-probabilities."""

ACTOR = {"use_kl_loss": True, "kl_loss_coef": 0.01}
TRAINER = {"total_training_steps": 3, "save_freq": -1, "test_freq": -1, "val_before_train": False}


def numbers(cli: Any, name: str) -> dict[int, dict[str, float]]:
    clocks = ("timing", "perf/", "time", "phase")
    return {
        step: {key: value for key, value in row.items() if not key.startswith(clocks)}
        for step, row in cli.metrics(name).items()
        if step
    }


def train(cli: Any, name: str, **sections: Any) -> dict[int, dict[str, float]]:
    done = cli.run("train", str(cli.write(name, **{"actor": ACTOR, "trainer": TRAINER, **sections})))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Flow of a step" in done.stdout
    found = numbers(cli, name)
    assert sorted(found) == [1, 2, 3]
    return found


@pytest.fixture(scope="module")
def expected(cli: Any) -> dict[int, dict[str, float]]:
    """The numbers of the first mode."""
    return train(cli, "flow-disaggregated", **EXACT["disaggregated"])


@pytest.mark.parametrize("mode", list(EXACT)[1:])
def test_modes_give_the_same_numbers_to_the_bit(cli: Any, expected: Any, mode: str) -> None:
    assert train(cli, f"flow-{mode}", **EXACT[mode]) == expected


@pytest.mark.parametrize("mode", PORTIONS)
def test_portions_and_phases_change_numbers_no_more_than_micro_batches_do(cli: Any, expected: Any, mode: str) -> None:
    found = train(cli, f"portions-{mode}", cluster=EXACT[mode]["cluster"], flow=PORTIONS[mode])
    for step, row in expected.items():
        for key, value in row.items():
            assert found[step][key] == pytest.approx(value, rel=1e-5, abs=1e-7), (mode, step, key)


def test_components_that_do_not_fit_together_take_turns(cli: Any, expected: Any) -> None:
    cluster = {**EXACT["collocated"]["cluster"], "device_memory_mib": 100}
    memory = {"actor": 80, "rollout": 60, "ref": 60}
    assert train(cli, "tight", cluster=cluster, flow={"memory_mib": memory}) == expected
    cluster["device_memory_mib"] = 70
    done = cli.run("train", str(cli.write("too-tight", cluster=cluster, flow={"memory_mib": memory}, actor=ACTOR)))
    assert done.returncode == 1
    assert "device 0 has 70 MiB, and actor needs 80 MiB there beside nothing else" in done.stderr


def test_sampling_ahead_trains_resumes_and_writes_a_timeline(cli: Any) -> None:
    sections = {
        "actor": {"use_rollout_log_probs": True},
        "flow": {"chunk": 4, "trace": True, "asynchronous": {"enable": True, "max_staleness": 1}},
        "trainer": {"total_training_steps": 4, "save_freq": 2, "test_freq": 2, "val_before_train": False},
    }
    path = cli.write("ahead", **sections)
    done = cli.run("train", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = cli.metrics("ahead")
    assert max(steps[step]["rollout/staleness/max"] for step in (1, 2, 3, 4)) <= 1
    folder = cli.folder / "ahead"
    states = [json.loads((folder / "checkpoints" / f"00000{step}" / "training_state" / "driver_state.json").read_text())
              for step in (2, 4)]  # fmt: skip
    assert states[0]["sampler"] != states[1]["sampler"]
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {"driver", "actor.0", "actor.1", "rollout.0"}
    assert {"rollout.generate", "actor.train", "update_actor"} <= {event["name"] for event in events}
    assert "timeline.json" in (folder / "report.html").read_text()
