"""Trackio."""

from __future__ import annotations

from collections.abc import Mapping

from plugrl.tracking.loggers.base import Logger, RunInfo, named, require


class TrackioLogger(Logger):
    """Logs to a Trackio run."""

    @classmethod
    def check(cls) -> None:
        """Import the package. Raises MissingDependency when it is not installed."""
        require("trackio", "trackio")

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self._trackio = require("trackio", "trackio")
        self._trackio.init(
            project=info.project_name,
            name=info.experiment_name,
            config=dict(info.config),
            resume="never" if info.resume_step is None else "allow",
        )

    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Log the metrics of one step."""
        self._trackio.log(named(metrics, phase), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._trackio.finish()
