"""SwanLab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plugrl.tracking.loggers.base import Logger, Row, RunInfo, named, require


class SwanlabLogger(Logger):
    """Logs to a SwanLab experiment."""

    @classmethod
    def check(cls) -> None:
        """Import the package. Raises MissingDependency when it is not installed."""
        require("swanlab", "swanlab")

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self._swanlab = require("swanlab", "swanlab")
        self._swanlab.init(
            project=info.project_name,
            experiment_name=info.experiment_name,
            config=dict(info.config),
            logdir=str(info.directory / "swanlog"),
        )

    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Log the metrics of one step."""
        self._swanlab.log(named(metrics, phase), step=step)

    def log_samples(self, rows: Sequence[Row], step: int, phase: str) -> None:
        """Log the samples as texts."""
        texts = [self._swanlab.Text("\n".join(f"{key}: {value}" for key, value in row.items())) for row in rows]
        if texts:
            self._swanlab.log({f"samples/{phase}": texts}, step=step)

    def close(self) -> None:
        """Finish the experiment."""
        self._swanlab.finish()
