"""What `plugrl accept` does: train a baseline or take a run that exists, judge it, write down what came out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plugrl.acceptance.baselines import Baseline
from plugrl.acceptance.curves import mean_curve
from plugrl.acceptance.record import REWARD, RunRecord, read_record
from plugrl.acceptance.reference import Reference
from plugrl.acceptance.rules import RuleResult, Thresholds, judge, spread
from plugrl.config import load_config
from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError, PlugRLError, UserError, nearest, one_of
from plugrl.tracking.files import write_atomic

PROJECT = "acceptance"
"""Project of the runs, and the folder below `outputs/` in which they lie."""

JSON_NAME, PAGE_NAME = "acceptance.json", "acceptance.html"


@dataclass(frozen=True)
class Acceptance:
    """The outcome: the run, the reference it was compared with, and the answer of every rule.

    differences: keys in which the two trained something else. reference_spread: distance that the reference's own seeds
    keep from each other, None with one seed.
    """

    record: RunRecord
    reference: Reference
    reference_name: str
    thresholds: Thresholds
    planned: int
    rules: tuple[RuleResult, ...]
    differences: tuple[str, ...] = ()
    reference_spread: float | None = None

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return all(rule.passed for rule in self.rules)

    @property
    def platform(self) -> str:
        """The platform of the run."""
        return self.record.platform or "an unnamed platform"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for acceptance.json."""
        reference = self.reference.model_dump(mode="json", include={"baseline", "platform", "versions"})
        return {
            "passed": self.passed,
            "platform": self.record.platform,
            "run": str(self.record.path),
            "error": self.record.error,
            "metric": REWARD,
            "steps": {"planned": self.planned, "done": self.record.last_step},
            "seed": self.record.seed,
            "rules": [rule.to_dict() for rule in self.rules],
            "thresholds": self.thresholds.model_dump(mode="json"),
            "reference": {
                **reference,
                "file": self.reference_name,
                "seeds": self.reference.seeds,
                "configuration_hash": self.reference.configuration_hash,
                "spread_of_seeds": self.reference_spread,
            },
            "configuration_differs": list(self.differences),
            "versions": self.record.versions,
            "rewards": list(self.record.rewards),
        }


def thresholds_from(texts: Sequence[str], reference: Mapping[str, float]) -> Thresholds:
    """Return the thresholds: the defaults, then the reference's own, then texts of the form ``name=number``.

    Raises:
        UserError: a text is no such assignment; names the threshold most like it.
    """
    values: dict[str, Any] = dict(reference)
    known = list(Thresholds.model_fields)
    for text in texts:
        name, equals, number = text.partition("=")
        if not equals or name not in known:
            close = nearest(name, known)
            hint = f" Did you mean {close}?" if close else ""
            raise UserError(f"--threshold {text}: must be NAME=NUMBER.{hint} Names: {one_of(known)}.")
        values[name] = number
    try:
        return Thresholds.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "thresholds"
        raise UserError(f"--threshold {name}: {first['msg']} (got {first['input']!r}).") from error


def baseline_config(
    baseline: Baseline,
    overrides: Sequence[str],
    *,
    platform: str | None,
    steps: int | None,
    output: Path | None,
    subfolder: str = "",
    plugins: Sequence[str] = (),
) -> RunConfig:
    """Return the configuration of a new run, its platform chosen and named and its folder set.

    output: the folder; None is one below `outputs/acceptance`. subfolder: below it, for one of several runs.

    Raises:
        UserError: as loading a configuration and choosing a platform do.
    """
    for text in overrides:
        if text.lstrip("-").partition("=")[0] in ("trainer.default_local_dir", "output_dir", "platform"):
            raise ConfigError(f"{text}: give the folder with --output and the platform with --platform.")
    given = [f"trainer.project_name={PROJECT}", f"trainer.experiment_name={baseline.name}", "trainer.resume=disable"]
    given += overrides
    given += [f"platform={platform}"] if platform else []
    given += [f"trainer.total_training_steps={steps}"] if steps else []
    config = load_config(baseline.path, given, plugin_options=plugins)
    from plugrl.platforms.selection import select

    name = select(config.platform).platform_name
    folder = (output or Path("outputs") / PROJECT / f"{baseline.name}-{name}") / subfolder
    trainer = config.trainer.model_copy(update={"default_local_dir": str(folder.expanduser().absolute())})
    if "jsonl" not in trainer.logger:
        raise ConfigError("trainer.logger: the acceptance reads what the logger jsonl writes; add it.")
    return config.model_copy(update={"platform": name, "trainer": trainer})


def check_length(config: RunConfig, thresholds: Thresholds) -> None:
    """Raise ConfigError for a run that is too short to be judged."""
    total, needed = config.trainer.total_training_steps, max(thresholds.trend_steps, thresholds.window + 1)
    if total is not None and total < needed:
        text = f"the rules need at least {needed} steps, got {total}; see --steps."
        raise ConfigError(f"trainer.total_training_steps: {text}")


def train_baseline(config: RunConfig) -> RunRecord:
    """Train and return the record. A failure of the training is part of the record; a user's mistake is raised."""
    from plugrl.runners.main import run_train

    folder = Path(config.trainer.default_local_dir)
    try:
        run_train(config)
    except UserError:
        raise
    except PlugRLError as error:
        if not (folder / "config.yaml").exists():
            raise
        return read_record(folder, error=f"{type(error).__name__}: {error}")
    return read_record(folder)


def assess(record: RunRecord, reference: Reference, reference_name: str, thresholds: Thresholds) -> Acceptance:
    """Judge a run. One whose length is given in epochs needs as many steps as are judged, or went through itself."""
    judged = min(thresholds.horizon, len(reference.rewards))
    wanted = record.planned or max(record.last_step + bool(record.error), judged)
    return Acceptance(
        record=record,
        reference=reference,
        reference_name=reference_name,
        thresholds=thresholds,
        planned=wanted,
        rules=tuple(judge(record, reference.rewards, wanted, thresholds)),
        differences=tuple(reference.differences(record.configuration)),
        reference_spread=spread([curve.rewards for curve in reference.curves], thresholds.window),
    )


def own_failures(
    reference: Reference, records: Sequence[RunRecord], thresholds: Thresholds
) -> list[tuple[int, RuleResult]]:
    """Return the rules that a reference's own seeds break, each judged by the mean of the others (itself if alone)."""
    found = []
    for index, (seed, record) in enumerate(zip(reference.seeds, records, strict=True)):
        others = [curve.rewards for number, curve in enumerate(reference.curves) if number != index]
        rules = judge(record, mean_curve(others or [record.rewards]), record.last_step, thresholds)
        found += [(seed, rule) for rule in rules if not rule.passed]
    return found


def write_outcome(outcome: Acceptance, folder: Path) -> Path:
    """Write acceptance.json and the page into ``folder`` and return the page's path."""
    from plugrl.acceptance.report import render

    write_atomic(folder / JSON_NAME, json.dumps(outcome.to_dict(), indent=2, default=str, allow_nan=False) + "\n")
    page = folder / PAGE_NAME
    write_atomic(page, render(outcome))
    return page
