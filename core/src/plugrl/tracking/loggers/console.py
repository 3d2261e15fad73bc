"""Progress on the console: a line for each step, and a bar with the time left where there is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from plugrl.tracking.headline import duration, headline
from plugrl.tracking.loggers.base import Logger, Row, RunInfo

QUIET_SECONDS = 30.0
"""Without a terminal, a line tells of progress within a step when nothing was printed for so long."""


class ConsoleLogger(Logger):
    """Writes to standard output; the time left follows from the steps of this process, from one line to the next."""

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self._bar: Any = None
        self._phase = ""
        self._task: Any = None
        self._interactive = sys.stdout.isatty()
        self._logged = 0.0
        self._step = 0
        self._start(None, info.resume_step or 0)

    def start_phase(self, phase: str, total_steps: int | None, first_step: int) -> None:
        """Start counting anew."""
        self._stop_bar()
        self._start(total_steps, first_step)
        self._phase = phase
        if self._interactive and total_steps:
            self._start_bar(phase, total_steps, first_step)

    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Print the step's headline numbers."""
        now = time.monotonic()
        if step > self._step:
            self._spent += now - self._logged
            self._steps += step - self._step  # lines may be several steps apart
        self._logged, self._step = now, step
        parts = [f"{label} {text}" for label, text in headline(metrics)]
        total = f"/{self._total}" if self._total else ""
        left = self._left(step)
        if left:
            parts.append(f"left {left}")
        self._print(f"{phase} step {step}{total}  " + "  ".join(parts))
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def progress(self, activity: str, done: int, total: int) -> None:
        """Say it in the bar, or in a line where there is no terminal and nothing was said for long."""
        if self._bar is not None:
            text = f"{self._phase}, {activity} {done}/{total}" if done < total else self._phase
            self._bar.update(self._task, description=text)
        elif done < total and time.monotonic() - self._spoke >= QUIET_SECONDS:
            self._print(f"{self._phase} {activity} {done}/{total}")

    def log_samples(self, rows: Sequence[Row], step: int, phase: str) -> None:
        """Samples go to the run directory, not to the console."""

    def close(self) -> None:
        """Take the bar away."""
        self._stop_bar()

    def _start(self, total_steps: int | None, first_step: int) -> None:
        self._total = total_steps
        self._spent, self._steps = 0.0, 0
        self._step = first_step
        self._logged = self._spoke = time.monotonic()

    def _left(self, step: int) -> str | None:
        if not self._total or not self._steps:
            return None
        return duration(self._spent / self._steps * max(self._total - step, 0))

    def _print(self, line: str) -> None:
        self._spoke = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def _start_bar(self, phase: str, total_steps: int, first_step: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True
        )
        self._task = self._bar.add_task(phase, total=total_steps, completed=first_step)
        self._bar.start()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
