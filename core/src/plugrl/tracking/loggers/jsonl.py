"""Metrics and samples as JSON lines in the run directory: what resuming, curves and the report read."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from plugrl.errors import UserError
from plugrl.tracking.loggers.base import Logger, Row, RunInfo
from plugrl.tracking.redact import redact


class JsonlLogger(Logger):
    """Appends one line for each call and flushes it, so that a killed run keeps what it measured."""

    def __init__(self, info: RunInfo) -> None:
        super().__init__(info)
        self._files: dict[str, TextIO] = {}

    def log(self, metrics: Mapping[str, float], step: int, phase: str) -> None:
        """Append `{"step", "time", "phase", metric: value, ...}` to metrics.jsonl; not-finite values become null."""
        values = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._append("metrics.jsonl", {"step": step, "time": time.time(), "phase": phase, **values})

    def log_samples(self, rows: Sequence[Row], step: int, phase: str) -> None:
        """Append each row with its step to samples.jsonl."""
        for row in rows:
            self._append("samples.jsonl", {"step": step, "time": time.time(), "phase": phase, **redact(dict(row))})

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        path = self.info.directory / name
        try:
            if name not in self._files:
                self._files[name] = open_lines(path)
            file = self._files[name]
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            file.flush()
        except OSError as error:
            broken = self._files.pop(name, None)
            with suppress(OSError):  # What it still holds back fails once more, and only once.
                if broken is not None:
                    broken.close()
            raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error


def open_lines(path: Path) -> TextIO:
    """Open a file of JSON lines for appending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")
