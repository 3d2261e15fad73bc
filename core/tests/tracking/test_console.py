"""What a person reads while a run works: the time left, and how far a long validation is."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugrl.tracking.loggers import console
from plugrl.tracking.loggers.base import RunInfo


class Clock:
    """A clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_time_left_counts_steps_and_not_the_validation_before_them(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = console.ConsoleLogger(RunInfo(directory=tmp_path))
    logger.start_phase("rl", 10, 0)
    clock.now += 300
    logger.log({"x": 1.0}, 0, "rl")
    for step in (1, 2):
        clock.now += 5
        logger.log({"x": 1.0}, step, "rl")
    opening, first, second = capsys.readouterr().out.splitlines()
    assert "left" not in opening
    assert first.endswith("left 45 s")
    assert second.endswith("left 40 s")


def test_lines_that_are_several_steps_apart_tell_the_same_time_left(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = console.ConsoleLogger(RunInfo(directory=tmp_path))
    logger.start_phase("sft", 100, 0)
    for step in (20, 40):
        clock.now += 20.0
        logger.log({"sft/loss": 1.0}, step, "sft")
    assert capsys.readouterr().out.splitlines()[-1].endswith("left 1 min 00 s")


def test_the_time_left_after_a_resume_counts_the_steps_of_this_process(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = console.ConsoleLogger(RunInfo(directory=tmp_path, resume_step=6))
    logger.start_phase("rl", 10, 6)
    clock.now += 5
    logger.log({"x": 1.0}, 7, "rl")
    assert capsys.readouterr().out.endswith("left 15 s\n")


def test_a_long_part_of_a_step_speaks_up_when_nothing_was_said_for_long(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = console.ConsoleLogger(RunInfo(directory=tmp_path))
    logger.start_phase("rl", 10, 0)
    for done in (1, 2, 3, 4):
        clock.now += console.QUIET_SECONDS * 0.6
        logger.progress("validating", done, 4)
    assert capsys.readouterr().out.splitlines() == ["rl validating 2/4"]
