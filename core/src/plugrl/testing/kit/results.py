"""What checks come to: a status each, a capability matrix, and the record that a package ships. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from plugrl.errors import DataError
from plugrl.platforms.capabilities import LEVELS, PLATFORM_CAPABILITIES, level_of

Status = Literal["supported", "failed", "not_declared", "works_undeclared", "xfail", "blocked", "skipped"]
STATUSES: tuple[Status, ...] = get_args(Status)
FORMAT = 1
FILE_NAME = "capabilities.json"
"""The record of the last run, beside the module with the manifest."""

_EXECUTED = {"supported", "failed", "works_undeclared", "xfail"}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The outcome of one check.

    Args:
        status: ``supported`` passed; ``failed``; ``not_declared`` (not run, or run as a probe and failed);
            ``works_undeclared`` passed as a probe; ``xfail`` failed as expected; ``blocked`` an earlier failure made it
            meaningless; ``skipped`` this machine cannot make it.
        detail: what was found, or why it was not run. fix: what to do when it failed.
        seconds: wall time.
        note: what the reader should know besides, such as an expected failure that passes.
    """

    id: str
    level: str
    status: Status
    capability: str | None = None
    requirement: str = ""
    detail: str = ""
    fix: str = ""
    note: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of the kit on one subject: a plugin, and its platform where it has one.

    ``versions`` are those of python, plugrl, torch, the plugin's distribution and the SDK; ``devices`` says what it ran
    on; ``demanded`` are the levels that were asked for by name, all others are free to be blocked; ``only`` are the
    checks that were asked for by id, of which alone the report speaks.
    """

    plugin: str
    platform: str = ""
    declared: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    demanded: bool = False
    only: tuple[str, ...] = ()
    results: tuple[CheckResult, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    devices: str = ""
    date: str = ""

    @property
    def counts(self) -> dict[Status, int]:
        """Number of checks by status, those without any left out."""
        found = [result.status for result in self.results]
        return {status: found.count(status) for status in STATUSES if status in found}

    @property
    def executed(self) -> int:
        """Number of checks whose body ran."""
        return sum(result.status in _EXECUTED for result in self.results)

    @property
    def passed(self) -> bool:
        """Whether something ran, nothing failed, and nothing that was asked for was blocked."""
        counts = self.counts
        return bool(self.executed) and not counts.get("failed") and not (self.demanded and counts.get("blocked"))

    def matrix(self) -> dict[str, Status]:
        """Return the outcome per capability of the levels that ran: the worst of its checks.

        A capability of such a level that has no check at all, or whose checks were all skipped, is left out unless it
        is not declared.
        """
        found: dict[str, list[Status]] = {}
        for result in self.results:
            if result.capability is not None:
                found.setdefault(result.capability, []).append(result.status)
        rows = {name: _worst(found[name]) for name in PLATFORM_CAPABILITIES if name in found}
        for name in PLATFORM_CAPABILITIES if not self.only else ():
            if name not in rows and level_of(name) in self.levels and self.platform and name not in self.declared:
                rows[name] = "not_declared"
        return {name: rows[name] for name in PLATFORM_CAPABILITIES if name in rows}

    def summary(self) -> str:
        """Return one line: ``L0-L2 supported 27, failed 0, not declared 6; run 2026-11-30 with torch 2.13.0``."""
        statuses = list((self.matrix() or {result.id: result.status for result in self.results}).values())
        always = ("supported", "failed", "not_declared")
        shown = [status for status in STATUSES if status in always or status in statuses]
        words = ", ".join(f"{status.replace('_', ' ')} {statuses.count(status)}" for status in shown)
        with_torch = f" with torch {self.versions['torch']}" if self.versions.get("torch") else ""
        return f"{span(self.levels)} {words}; run {self.date[:10]}{with_torch}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the format of ``capabilities.json``."""
        values = {**asdict(self), "results": [asdict(result) for result in self.results]}
        return {"format": FORMAT, "summary": self.summary(), "capabilities": self.matrix(), **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Return the report that :meth:`to_dict` gave. Raises TypeError, KeyError or ValueError for anything else."""
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r}, this plugrl reads {FORMAT}")
        left_out = {"format", "summary", "capabilities", "results"}
        rows = tuple(CheckResult(**row) for row in values["results"])
        plain = {name: value for name, value in values.items() if name not in left_out}
        lists = {name: tuple(plain.get(name, ())) for name in ("declared", "levels", "only")}
        return cls(**{**plain, **lists, "results": rows})


def read_reports(path: Path) -> tuple[Report, ...]:
    """Return the reports of a ``capabilities.json``. Raises DataError when it cannot be read or is no such record."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
        return tuple(Report.from_dict(values) for values in loaded["reports"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is no record of the conformance kit ({type(error).__name__}: {error}).") from error


def span(levels: Iterable[str]) -> str:
    """Write levels the short way: ``L0-L2``, ``L1, L3``, ``L0, engine``."""
    numbered = list(LEVELS)
    runs: list[list[str]] = []
    for level in levels:
        last = runs[-1][-1] if runs else None
        follows = last in numbered and level in numbered and numbered.index(level) == numbered.index(last) + 1
        if follows:
            runs[-1].append(level)
        else:
            runs.append([level])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "nothing"


def _worst(statuses: list[Status]) -> Status:
    order: tuple[Status, ...] = ("failed", "blocked", "xfail", "supported", "not_declared", "works_undeclared")
    return next((status for status in order if status in statuses), "skipped")
