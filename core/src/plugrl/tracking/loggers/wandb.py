"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plugrl.tracking.loggers.base import Logger, Row, RunInfo, named, require


class WandbLogger(Logger):
    """Logs to one W&B run for each run, so that a resumed one goes on in the same."""

    @classmethod
    def check(cls) -> None:
        """Import the package. Raises MissingDependency when it is not installed."""
        require("wandb", "wandb")

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self._wandb = require("wandb", "wandb")
        self._run = self._wandb.init(
            project=info.project_name,
            name=info.experiment_name,
            config=dict(info.config),
            dir=str(info.directory),
            id=info.run_id,
            resume="allow",
        )

    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Log the metrics; W&B's own step counts calls, the axis is `global_step`."""
        self._run.log({**named(metrics, phase), "global_step": step})

    def log_samples(self, rows: Sequence[Row], step: int, phase: str) -> None:
        """Log the samples as a table."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = self._wandb.Table(columns=columns, data=[[str(row.get(key, "")) for key in columns] for row in rows])
        self._run.log({f"samples/{phase}": table, "global_step": step})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
