"""What a logger is: it is told of metrics and samples, and closed."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from plugrl.errors import MissingDependency

Row = Mapping[str, Any]
"""One sample: prompt, response, reward and whatever the runner adds."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a logger may know of the run when it starts.

    ``config`` holds plain values without secrets. ``resume_step`` is the last step of the checkpoint that the run goes
    on from, None for a new run. ``run_id`` names the run to services: one that is resumed keeps it, wherever it lies.
    """

    directory: Path
    run_id: str = ""
    project_name: str = "plugrl"
    experiment_name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    resume_step: int | None = None


class Logger(ABC):
    """One place where metrics go. The constructor raises MissingDependency when its package is not installed."""

    def __init__(self, info: RunInfo) -> None:
        self.info = info

    @classmethod
    def check(cls) -> None:
        """Raise MissingDependency when its package is not installed; called before the run writes anything."""
        return None

    def start_phase(self, phase: str, total_steps: int | None, first_step: int) -> None:
        """Be told that a phase (`sft`, `rl`) of so many steps begins after ``first_step``."""
        return None

    @abstractmethod
    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Take the metrics of one step."""

    def progress(self, activity: str, done: int, total: int) -> None:
        """Be told how far a long part of a step has come."""
        return None

    def log_samples(self, rows: Sequence[Row], step: int, phase: str) -> None:
        """Take sample generations of one step."""
        return None

    def close(self) -> None:
        """Write what is still held back. Called once, also after an error."""
        return None


def require(module: str, logger: str, install: str | None = None) -> ModuleType:
    """Import an optional module for a logger; raises MissingDependency with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"trainer.logger: {logger} needs a package that cannot be imported ({error}). "
            f"Run `pip install {install or logger}`, or leave {logger} out."
        ) from error


def named(metrics: Mapping[str, float], phase: str) -> dict[str, float]:
    """Return the metrics under the names of loggers that know no phases: those of `rl` are left as they are."""
    return {key if phase == "rl" else f"{phase}/{key}": value for key, value in metrics.items()}
