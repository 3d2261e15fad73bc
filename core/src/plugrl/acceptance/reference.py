"""Reference curves: what a trusted platform gives for a baseline, over several seeds, as a small JSON file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from plugrl.acceptance.curves import band, mean_curve
from plugrl.acceptance.record import REWARD, RunRecord
from plugrl.errors import DataError
from plugrl.tracking.files import write_atomic

_DIGITS = 5
_PACKAGES = ("torch", "ray", "transformers")
_MOST_SHOWN = 8


class SeedCurve(BaseModel):
    """The mean reward of each step of one run, from step 1 on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: int
    rewards: tuple[float, ...] = Field(min_length=3)


class Reference(BaseModel):
    """Runs of one configuration on one platform, one a seed, and what they were made with.

    thresholds: those of the rules that this baseline needs otherwise than by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    baseline: str
    metric: Literal["critic/rewards/mean"] = REWARD
    platform: str
    configuration_hash: str
    configuration: dict[str, Any]
    versions: dict[str, str] = {}
    thresholds: dict[str, float] = {}
    curves: tuple[SeedCurve, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_unaltered(self) -> Reference:
        if self.configuration_hash != configuration_hash(self.configuration):
            raise ValueError("configuration_hash is not that of the configuration: the file was altered")
        return self

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(curve.seed for curve in self.curves)

    @property
    def rewards(self) -> list[float]:
        """Their mean at each step."""
        return mean_curve([curve.rewards for curve in self.curves])

    @property
    def band(self) -> list[tuple[float, float]]:
        """The lowest and the highest of them at each step."""
        return band([curve.rewards for curve in self.curves])

    def describe(self) -> str:
        """Return it in words: platform, seeds, steps."""
        seeds = ", ".join(map(str, self.seeds))
        return f"{self.platform}, {'seeds' if len(self.seeds) > 1 else 'seed'} {seeds}, {len(self.rewards)} steps"

    def differences(self, configuration: Mapping[str, Any]) -> list[str]:
        """Return a line for each key in which a configuration trains something else: ``key: value, reference value``.

        Keys that only one of them has are of another version or of a plugin, and are left out.
        """
        plain = json.loads(json.dumps(dict(configuration)))
        return [
            f"{key}: {plain[key]!r}, in the reference {value!r}"
            for key, value in self.configuration.items()
            if key in plain and plain[key] != value
        ]


def configuration_hash(configuration: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the values that decide what is trained, whatever their order."""
    text = json.dumps(dict(configuration), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_reference(
    records: Sequence[RunRecord], baseline: str, thresholds: Mapping[str, float] | None = None
) -> Reference:
    """Return a reference from whole runs of one configuration.

    Raises:
        DataError: a run did not go through, their configurations or platforms differ, or a seed stands twice.
    """
    first = records[0]
    for record in records:
        broken = record.error or next(iter(record.not_finite), "")
        if broken or len(record.rewards) != record.last_step or len(record.rewards) < 3:
            raise DataError(f"{record.path} cannot be a reference: {broken or 'its run has too few steps'}.")
        if record.planned is not None and record.last_step < record.planned:
            raise DataError(f"{record.path} cannot be a reference: {record.last_step} of {record.planned} steps.")
        _check_same(first, record)
    seeds = [record.seed if record.seed is not None else 0 for record in records]
    if len(set(seeds)) < len(seeds):
        raise DataError(f"The runs of a reference need different values of trainer.seed, got {seeds}.")
    configuration = json.loads(json.dumps(dict(first.configuration)))
    return Reference(
        baseline=baseline,
        platform=first.platform or "unknown",
        configuration_hash=configuration_hash(configuration),
        configuration=configuration,
        versions=_versions(first.versions),
        thresholds=dict(thresholds or {}),
        curves=tuple(
            SeedCurve(seed=seed, rewards=tuple(round(value, _DIGITS) for value in record.rewards))
            for seed, record in zip(seeds, records, strict=True)
        ),
    )


def _check_same(first: RunRecord, record: RunRecord) -> None:
    keys = first.configuration.keys() | record.configuration.keys()
    other = sorted(key for key in keys if first.configuration.get(key) != record.configuration.get(key))
    if other:
        more = f" and {len(other) - _MOST_SHOWN} more" if len(other) > _MOST_SHOWN else ""
        raise DataError(f"{first.path} and {record.path} differ in {', '.join(other[:_MOST_SHOWN])}{more}.")
    if first.platform != record.platform:
        raise DataError(
            f"{first.path} ran on {first.platform}, {record.path} on {record.platform}: a reference is of one platform."
        )


def _versions(versions: Mapping[str, Any]) -> dict[str, str]:
    found = {"python": versions.get("python"), "system": versions.get("system")}
    found |= versions.get("plugrl") or {}
    packages = versions.get("packages") or {}
    found |= {name: packages.get(name) for name in _PACKAGES}
    return {name: str(value) for name, value in found.items() if value}


def save_reference(reference: Reference, path: Path) -> None:
    """Write a reference with one curve a line. Raises UserError when the file cannot be written."""
    values = reference.model_dump(mode="json")
    curves = values.pop("curves")
    head = json.dumps(values, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(curve)}" for curve in curves)
    write_atomic(path, f'{head},\n "curves": [\n{lines}\n ]\n}}\n')


def load_reference(path: Path) -> Reference:
    """Read a reference. Raises DataError naming the file and what is wrong with it."""
    try:
        return parse_reference(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read the reference {path}: {getattr(error, 'strerror', None) or error}.") from error


def parse_reference(text: str, name: str) -> Reference:
    """Return the reference in a text; ``name`` is what errors call it. Raises DataError."""
    try:
        return Reference.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{name} is no reference of the acceptance: {place + ': ' if place else ''}{first['msg']}. "
            "`plugrl accept --make-reference FILE` writes one."
        ) from error
