"""What a run folder says of a run, as the acceptance needs it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from plugrl.config.yaml_source import read_document
from plugrl.errors import DataError
from plugrl.tracking.files import read_lines
from plugrl.tracking.run_directory import RunDirectory

REWARD: Final = "critic/rewards/mean"
"""The metric that is judged."""

_JUDGED = ("critic/", "actor/", "sft/")
"""Prefixes of the metrics that must be finite."""

_SKIPPED = "actor/skipped_steps"
_IGNORED_SECTIONS = frozenset({"platform", "plugins", "cluster", "trainer"})
_IGNORED_KEYS = ("model.cache_dir", "actor.checkpoint", "critic.checkpoint")
_PATHS = ("model.path", "data.train_files", "data.val_files", "data.source_options.path")


@dataclass(frozen=True)
class RunRecord:
    """A run of reinforcement learning: the mean reward of each step, and what else its record tells.

    rewards: of steps 1, 2, ... up to the first that is missing or not finite. last_step: the last that was logged.
    not_finite: where a metric that must be finite is missing or not finite. configuration: the values that decide what
    is trained, by dotted key. error: what ended the run early, empty for one that went through.
    """

    path: Path
    rewards: tuple[float, ...]
    last_step: int
    not_finite: tuple[str, ...] = ()
    skipped_steps: int = 0
    planned: int | None = None
    seed: int | None = None
    platform: str | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""


def read_record(folder: str | Path, *, error: str = "") -> RunRecord:
    """Read the record of a run; one that failed at once may have none.

    Raises:
        DataError: the folder is none of a run, or its run has no step of reinforcement learning and no ``error``.
    """
    run = RunDirectory(folder)
    if not run.config.exists():
        raise DataError(f"{run.path} is no folder of a run: it has no {run.config.name}.")
    rows = list(read_lines(run.metrics))
    steps = {row["step"]: row for row in rows if row.get("phase", "rl") == "rl" and row["step"] > 0}
    if not steps and not error:
        raise DataError(
            f"{run.path} has no step of reinforcement learning in {run.metrics.name}. "
            "The acceptance judges runs of `plugrl train` with the logger jsonl."
        )
    values, _ = read_document(run.config)
    trainer = values.get("trainer") or {}
    return RunRecord(
        path=run.path,
        rewards=tuple(_rewards(steps)),
        last_step=max(steps, default=0),
        not_finite=tuple(_not_finite(rows, steps)),
        skipped_steps=round(max((row.get(_SKIPPED) or 0 for row in steps.values()), default=0)),
        planned=trainer.get("total_training_steps"),
        seed=trainer.get("seed"),
        platform=values.get("platform"),
        configuration=deciding(values),
        versions=_read_json(run.versions),
        error=error,
    )


def _rewards(steps: Mapping[int, Mapping[str, Any]]) -> Iterator[float]:
    step = 1
    while isinstance(value := steps.get(step, {}).get(REWARD), int | float):
        yield float(value)
        step += 1


def _not_finite(rows: list[dict[str, Any]], steps: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    for number in range(1, max(steps, default=0) + 1):
        if REWARD not in steps.get(number, {}):
            yield f"{REWARD} of step {number}"
    for row in rows:
        phase = "" if row.get("phase", "rl") == "rl" else f"{row['phase']} "
        for name, value in row.items():
            if name.startswith(_JUDGED) and not isinstance(value, int | float):
                yield f"{name} of {phase}step {row['step']}"


def deciding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a configuration that decide what is trained, by dotted key.

    Where it runs, on which seed, how long and what is logged are left out; a path counts by its last part.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _IGNORED_SECTIONS:
            _flatten(name, value, found)
    return {
        key: _last_part(value) if key in _PATHS else value
        for key, value in sorted(found.items())
        if not any(key == ignored or key.startswith(f"{ignored}.") for ignored in _IGNORED_KEYS)
    }


def _flatten(prefix: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            _flatten(f"{prefix}.{name}", inner, found)
    else:
        found[prefix] = value


def _last_part(value: Any) -> Any:
    if isinstance(value, str):
        return Path(value).name
    return [_last_part(item) for item in value] if isinstance(value, list | tuple) else value


def _read_json(path: Path) -> dict[str, Any]:
    """Return what is in the file, nothing if it is missing or damaged: it only describes the run."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
