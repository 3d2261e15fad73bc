"""The loop alone, with ranks that only write down what they are asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from plugrl.checkpoints import CheckpointStore
from plugrl.config.schema import RunConfig
from plugrl.data.plan import Position
from plugrl.runners.main import tracker_id
from plugrl.runners.sft import STEP_FILE, SftRun, train_sft
from plugrl.tracking import RunDirectory


class Group:
    """Stands for ranks: 2 x 2 workers over 20 samples."""

    size = 4

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, int]] = []
        self.restored: list[Path] = []
        self.measured = 0

    def describe(self) -> dict[str, Any]:
        """Counts."""
        return {
            "samples": 20, "batch_size": 3, "dp_replicate": 2, "dp_shard": 2, "parameters": 1234567,
            "trainable_parameters": 1000, "steps_per_epoch": 2, "held_out_samples": 0,
        }  # fmt: skip

    def step(self, position: Position, window: int, window_index: int) -> dict[str, float]:
        """One step."""
        self.steps.append((position.epoch, position.offset, window, window_index))
        return {"sft/loss": 1.0, "lr": 0.5}

    def measure(self) -> dict[str, float]:
        """The held-out loss."""
        self.measured += 1
        return {"val/loss": 0.5}

    def write(self, directory: Path, step: int, progress: Mapping[str, Any], train_config: Mapping[str, Any]) -> None:
        """A checkpoint that holds its progress alone."""
        path = directory / STEP_FILE
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"step": step, "dp_world_size": 4, "optimizer_updates": 0, **progress}))

    def restore(self, directory: Path, progress: Mapping[str, Any]) -> None:
        """Go on."""
        self.restored.append(directory)


class Tracker:
    """Keeps what is logged."""

    run_id = "2f90"

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One row."""
        self.rows[step] = dict(metrics)


def run(
    tmp_path: Path, *, resume: bool = False, log_freq: int = 1, save_freq: int = -1, data: Any = None, **sft: Any
) -> SftRun:
    trainer = {"log_freq": log_freq, "save_freq": save_freq}
    config = RunConfig.model_validate({"sft": sft, "trainer": trainer, "data": data or {}})
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    found = store.resolve("last") if resume else None
    return SftRun(config, Group(), Tracker(), store, resume_from=found)  # type: ignore[arg-type]


def test_the_banner(tmp_path: Path) -> None:
    said: list[str] = []
    run(tmp_path, total_steps=4, gradient_accumulation_steps=2).announce(said.append)
    assert said[-1] == (
        "effective batch size: 3 per worker x 4 workers x 2 accumulation = 24 (dp_replicate=2, dp_shard=2)"
    )
    assert said[0] == f"output directory: {tmp_path / 'run'}" and "1,000 learnable of 1,234,567" in said[2]


def test_steps_windows_and_places_in_the_data(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Five steps in windows of two: the last one is alone, and divided by one."""
    loop = run(tmp_path, total_steps=5, gradient_accumulation_steps=2)
    with caplog.at_level(logging.WARNING):
        train_sft(loop)
    assert loop.group.steps == [(0, 0, 2, 0), (0, 12, 2, 1), (1, 0, 2, 0), (1, 12, 2, 1), (2, 0, 1, 0)]  # type: ignore[attr-defined]
    assert "the last update is made of 1" in caplog.text
    assert loop.store.steps() == [5], "the last step is always saved"


def test_a_checkpoint_within_a_window_waits_for_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train_sft(run(tmp_path, total_steps=12, gradient_accumulation_steps=4, save_freq=3))
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == [4, 8, 12]
    assert caplog.text.count("are written at its end") == 1


@pytest.mark.parametrize(("every", "saved"), [(20, [20, 40, 50]), (0, [50]), (-1, [50])])
def test_when_checkpoints_are_written(tmp_path: Path, every: int, saved: list[int]) -> None:
    train_sft(run(tmp_path, total_steps=50, save_freq=every))
    assert CheckpointStore(tmp_path / "run" / "checkpoints").steps() == saved


def test_a_resumed_run_begins_a_window_where_the_checkpoint_stands(tmp_path: Path) -> None:
    train_sft(run(tmp_path, total_steps=6, gradient_accumulation_steps=3))
    loop = run(tmp_path, resume=True, total_steps=10, gradient_accumulation_steps=4)
    train_sft(loop)
    assert loop.first == 6 and [step.number for step in loop.steps()] == [7, 8, 9, 10]
    assert [step[2:] for step in loop.group.steps] == [(4, 0), (4, 1), (4, 2), (4, 3)]  # type: ignore[attr-defined]
    assert loop.group.steps[0][:2] == (3, 0) and len(loop.group.restored) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"data": {"seed": 7}}, "-> 7"),
        ({"data": {"shuffle": False}}, "shuffle: True -> False"),
        ({"drop_last": True}, "drop_last: False -> True"),
        ({"samples": 21}, "samples: 20 -> 21"),
    ],
)
def test_what_changes_the_order_of_the_samples_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, change: Any, said: str
) -> None:
    train_sft(run(tmp_path, total_steps=3))
    facts = {**Group().describe(), "samples": change.pop("samples", 20)}
    monkeypatch.setattr(Group, "describe", lambda self: facts)
    with caplog.at_level(logging.WARNING):
        run(tmp_path, resume=True, total_steps=6, **change)
    assert ("which worker sees which sample" in caplog.text) == bool(said) and said in caplog.text


def test_a_resumed_run_is_the_same_run_to_tracking_services(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "run")
    assert tracker_id(folder, None) is None
    train_sft(run(tmp_path, total_steps=3))
    step = folder.checkpoints / "000003"
    moved = RunDirectory(tmp_path / "moved")
    assert tracker_id(folder, step) == tracker_id(moved, step) == "2f90"
    (folder.path / "checkpoints").rename(folder.path / "sft")
    assert tracker_id(folder, None) == "2f90", "of a run whose supervised phase was interrupted"
    record = json.loads((folder.path / "sft/000003" / STEP_FILE).read_text())
    (folder.path / "sft/000003" / STEP_FILE).write_text(json.dumps({**record, "tracker_run_id": None}))
    assert tracker_id(folder, None) == tracker_id(folder, folder.path / "sft/000003") != "2f90"


def test_a_checkpoint_of_others_gives_no_place_and_it_follows_from_the_step(tmp_path: Path) -> None:
    train_sft(run(tmp_path, total_steps=3))
    step = tmp_path / "run" / "checkpoints" / "000003"
    record = json.loads((step / STEP_FILE).read_text())
    (step / STEP_FILE).write_text(json.dumps({key: record[key] for key in ("step", "batch_size", "dp_world_size")}))
    loop = SftRun(
        run(tmp_path, total_steps=9).config, Group(), Tracker(), CheckpointStore(tmp_path / "x"), resume_from=step  # type: ignore[arg-type]
    )
    assert loop.position == Position(1, 12, 36)


def test_rows_are_logged_as_often_as_asked_for_and_where_something_was_measured(tmp_path: Path) -> None:
    loop = run(tmp_path, total_steps=7, log_freq=3, eval_every=2)
    train_sft(loop)
    assert sorted(loop.tracker.rows) == [2, 3, 4, 6, 7]  # type: ignore[attr-defined]
    assert loop.tracker.rows[4]["val/loss"] == 0.5 and loop.tracker.rows[3]["sft/lr"] == 0.5  # type: ignore[attr-defined]
