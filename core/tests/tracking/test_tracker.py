"""The tracker and its loggers: what is written, what is missing, what breaks."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugrl.config import RunConfig
from plugrl.errors import MissingDependency, NotRegistered, UserError
from plugrl.metric import Metric
from plugrl.tracking import RunDirectory, Tracker
from plugrl.tracking.headline import duration, headline
from plugrl.tracking.loggers.base import Logger
from plugrl.tracking.registry import loggers
from plugrl.tracking.tracker import check_loggers


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_have_step_time_and_metrics(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with Tracker([], run, RunConfig()) as tracker:
        tracker.log({"a/b": Metric(0.5), "c": 2, "bad": float("nan")}, 3)
        tracker.log_samples([{"prompt": "p", "response": "r", "reward": 1.0, "api_key": "hidden"}], 3)
        # A killed run keeps what it measured: nothing waits for close.
        assert lines(run.metrics)[0]["a/b"] == 0.5
    row = lines(run.metrics)[0]
    assert row["step"] == 3 and row["c"] == 2.0 and row["bad"] is None and row["phase"] == "rl"
    assert isinstance(row["time"], float)
    sample = lines(run.samples)[0]
    assert sample["response"] == "r" and sample["step"] == 3 and "hidden" not in json.dumps(sample)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_message_that_names_the_file(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.metrics.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"metrics\.jsonl cannot be written: No space left"):
        with Tracker([], run, RunConfig()) as tracker:
            tracker.log({"a": 1.0}, 1)


def test_phases_are_noted(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with Tracker([], run, RunConfig()) as tracker:
        tracker.start_phase("sft", 10)
        tracker.log({"sft/loss": 1.0}, 1)
        tracker.start_phase("rl", 5)
        tracker.log({"critic/rewards/mean": 1.0}, 1)
    assert [row["phase"] for row in lines(run.metrics)] == ["sft", "rl"]


def test_an_unknown_logger_is_named_with_candidates(tmp_path: Path) -> None:
    with pytest.raises(NotRegistered, match=r'^trainer\.logger: .*"tensorbord".*tensorboard'):
        Tracker(["tensorbord"], RunDirectory(tmp_path), RunConfig())


@pytest.mark.parametrize("name", ["wandb", "swanlab", "trackio", "tensorboard"])
def test_a_missing_package_stops_the_run_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    for start in (lambda: check_loggers([name]), lambda: Tracker([name], RunDirectory(tmp_path), RunConfig())):
        with pytest.raises(MissingDependency, match=f"pip install .*{name}"):
            start()


def test_a_service_knows_a_resumed_run_by_the_id_that_its_checkpoint_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def init(**options: Any) -> Any:
        started.append(options["id"])
        return SimpleNamespace(log=lambda row: None, finish=lambda: None)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    for run_id in (None, None, "2f90"):
        with Tracker(["wandb"], RunDirectory(tmp_path), RunConfig(), run_id=run_id) as tracker:
            assert tracker.run_id == started[-1]
    assert started[2] == "2f90" and started[0] != started[1], "a new run in an old folder is another run"


def test_a_logger_that_breaks_while_training_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(Logger):
        """A service that is down."""

        def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
            """Fail."""
            raise ConnectionError("service down")

    run = RunDirectory(tmp_path)
    with loggers.temporary(), caplog.at_level(logging.WARNING):
        loggers.register("breaking", Breaking)
        with Tracker(["breaking"], run, RunConfig()) as tracker:
            tracker.log({"a": 1.0}, 1)
            tracker.log({"a": 2.0}, 2)
    assert [row["a"] for row in lines(run.metrics)] == [1.0, 2.0]
    assert caplog.text.count("service down") == 1


def test_the_console_prints_one_plain_line_for_each_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Tracker(["console"], RunDirectory(tmp_path), RunConfig()) as tracker:
        tracker.start_phase("rl", 20)
        tracker.log(
            {
                "critic/rewards/mean": 0.5,
                "response_length/mean": 12.25,
                "perf/throughput": 1234.5,
                "timing_s/step": 2.0,
            },
            1,
        )
        tracker.log({"val-core/arithmetic/acc/mean@1": 0.415}, 2)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("rl step 1/20  reward 0.500  length 12.2  tokens/s 1,234  time 2.0 s  left ")
    assert second.startswith("rl step 2/20  accuracy 41.5%")


def test_headline_falls_back_to_the_first_metrics() -> None:
    assert headline({"x": 1.0, "y": 2.0}) == [("x", "1"), ("y", "2")]


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (-1, "0 s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_tensorboard_hides_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDirectory(tmp_path)
    with Tracker(["tensorboard"], run, RunConfig()) as tracker:
        for step in (1, 2, 3):
            tracker.log({"a": float(step)}, step)
        tracker.log_samples([{"prompt": "p", "response": "r"}], 3)
    with Tracker(["tensorboard"], run, RunConfig(), resume_step=1) as tracker:
        tracker.log({"a": 20.0}, 2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(1, 1.0), (2, 20.0)]
