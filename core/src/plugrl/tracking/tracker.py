"""One door to all loggers of a run."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from plugrl.errors import NotRegistered
from plugrl.tracking.loggers.base import Logger, Row, RunInfo
from plugrl.tracking.redact import redact
from plugrl.tracking.registry import loggers
from plugrl.tracking.run_directory import RunDirectory

_log = logging.getLogger(__name__)


class Tracker:
    """Hands metrics and samples to every logger.

    The run directory's own record (`jsonl`) is always among them, because resuming, the curves and the report read it.
    A logger that fails while training runs is reported once and left out; at the start it stops the run.

    Use as a context manager, or call :meth:`close`.
    """

    def __init__(
        self,
        names: Sequence[str],
        run_dir: RunDirectory,
        config: BaseModel | Mapping[str, Any],
        *,
        resume_step: int | None = None,
        run_id: str | None = None,
    ) -> None:
        """Start the loggers. Raises NotRegistered for an unknown name and MissingDependency for a missing package.

        ``run_id``: by which services know a run that is resumed; None makes a new one.
        """
        self.run_id = run_id or secrets.token_hex(6)
        values = config.model_dump(mode="json") if isinstance(config, BaseModel) else dict(config)
        trainer = values.get("trainer", {})
        info = RunInfo(
            directory=run_dir.path,
            project_name=str(trainer.get("project_name", "plugrl")),
            experiment_name=str(trainer.get("experiment_name", run_dir.path.name)),
            config=redact(values),
            resume_step=resume_step,
            run_id=self.run_id,
        )
        self.phase = "rl"
        self._loggers: dict[str, Logger] = {}
        try:
            for name in dict.fromkeys((*names, "jsonl")):
                self._loggers[name] = _create(name, info)
        except BaseException:
            self.close()
            raise

    def start_phase(self, phase: str, total_steps: int | None = None, first_step: int = 0) -> None:
        """Begin a phase (`sft` or `rl`) of ``total_steps`` steps, of which ``first_step`` are already done."""
        self.phase = phase
        self._each(lambda logger: logger.start_phase(phase, total_steps, first_step))

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log numbers (anything `float()` takes) of one step, under verl's names."""
        values = {key: float(value) for key, value in metrics.items()}
        self._each(lambda logger: logger.log(values, step, self.phase))

    def progress(self, activity: str, done: int, total: int) -> None:
        """Tell a person how far a long part of a step has come."""
        self._each(lambda logger: logger.progress(activity, done, total))

    def log_samples(self, rows: Sequence[Row], step: int) -> None:
        """Log sample generations: mappings with `prompt`, `response`, `reward` and what else there is."""
        rows = [dict(row) for row in rows]
        self._each(lambda logger: logger.log_samples(rows, step, self.phase))

    def close(self) -> None:
        """Close every logger, whatever happens to one of them."""
        self._each(lambda logger: logger.close())
        self._loggers.clear()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _each(self, call: Any) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                call(logger)
            except Exception as error:  # a service that is down must not end a training run
                if name == "jsonl":
                    raise
                _log.warning("Logger %s failed and is left out from now on: %s: %s", name, type(error).__name__, error)
                del self._loggers[name]


def check_loggers(names: Sequence[str]) -> None:
    """Raise NotRegistered for an unknown logger and MissingDependency for one without its package, before any starts.

    The text starts with the key of the configuration.
    """
    for name in names:
        _find(name).check()


def _find(name: str) -> type[Logger]:
    try:
        return loggers.get(name)
    except NotRegistered as error:
        raise type(error)(f"trainer.logger: {error}") from error


def _create(name: str, info: RunInfo) -> Logger:
    return _find(name)(info)
