"""Write a file so that a reader sees the old or the new content, never a part; read JSON lines that may be cut off."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plugrl.errors import UserError

_LARGEST = 1e100
"""Bound of the numbers that are read: a Python integer may be beyond every float, and charts take differences."""


def write_atomic(path: Path, text: str) -> None:
    """Replace the file's content by ``text`` in one step. Raises UserError when the file system does not take it."""
    try:
        _write_atomic(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}.") from error


def _write_atomic(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines; nothing if there is no file.

    What no logger writes is left out: lines cut off by a crash or without a whole number as their step, and numbers
    too large to compute with.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(row, dict) and _has_place(row):
                yield {key: value for key, value in row.items() if not isinstance(value, int | float) or _sane(value)}


def _has_place(row: dict[str, Any]) -> bool:
    step = row.get("step")
    return isinstance(step, int) and _sane(step) and isinstance(row.get("phase", ""), str)


def _sane(value: int | float) -> bool:
    return abs(value) < _LARGEST  # Neither infinity nor NaN is.


def truncate_after(path: Path, step: int, phase: str) -> int:
    """Drop the rows from the first one of ``phase`` after ``step`` on, in one step; return how many were dropped.

    Rows of phases that were over before stay. A run that resumes at ``step`` writes the dropped rows again.
    """
    rows = list(read_lines(path))
    late = (i for i, row in enumerate(rows) if row.get("phase", "rl") == phase and row["step"] > step)
    end = next(late, len(rows))
    if path.exists():
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[:end]))
    return len(rows) - end
