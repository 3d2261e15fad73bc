"""``plugrl plugins check``: run the conformance kit on a plugin, show what it found, and keep the record."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plugrl.cli import console
from plugrl.testing.kit import render
from plugrl.testing.kit.conformance import Target, run_conformance, targets_of
from plugrl.testing.kit.results import Report
from plugrl.testing.kit.runner import Progress
from plugrl.testing.kit.settings import Settings, expand_levels, read_settings

STDOUT = "-"
_BELOW = ("not_declared", "blocked", "skipped")
"""What is told below the tables, many checks in one line."""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of the command; a file named ``-`` is standard output."""

    levels: Sequence[str] = ()
    only: Sequence[str] = ()
    probe_undeclared: bool = False
    json: str = ""
    junit: str = ""
    markdown: str = ""
    pyproject: Path | None = None


def run(name: str, options: CheckOptions) -> int:
    """Check a plugin or platform and print the outcome; return 0 only if every report passed."""
    console.reserve_output()
    levels = expand_levels(options.levels)
    reports = [_run(target, levels, options) for target in targets_of(name)]
    for report in reports:
        if STDOUT not in (options.json, options.junit, options.markdown):
            show(report)
    write(reports, options)
    return 0 if all(report.passed for report in reports) else 1


def _run(target: Target, levels: tuple[str, ...], options: CheckOptions) -> Report:
    settings = target.settings
    if options.pyproject is not None:
        settings = read_settings(options.pyproject) or Settings()
    # The id of a check begins with its level.
    of_checks = tuple(dict.fromkeys(name.partition(".")[0] for name in options.only))
    return run_conformance(
        target,
        levels or of_checks or settings.levels,
        only=tuple(options.only),
        probe_undeclared=options.probe_undeclared,
        settings=settings,
        progress=progress() if sys.stderr.isatty() else announcements(),
    )


def show(report: Report) -> None:
    """Print the checks that ran as a table for each level, then what did not run, and the verdict."""
    for level in report.levels:
        rows = [row for row in report.results if row.level == level and row.status not in _BELOW]
        if rows:
            console.show_table(("", "check", "found", "what to do"),
                               [(row.status != "failed", row.id, row.detail, row.fix) for row in rows],
                               title=f"{level}, {sum(row.seconds for row in rows):.1f} s")  # fmt: skip
    console.say(*render.report_lines(report))


def write(reports: Sequence[Report], options: CheckOptions) -> None:
    """Write the records that were asked for."""
    from plugrl.tracking.files import write_atomic

    wanted = {
        "json": (options.json, lambda: render.as_json(reports)),
        "junit": (options.junit, lambda: render.as_junit(reports)),
        "markdown": (options.markdown, lambda: "\n".join(map(render.as_markdown, reports))),
    }
    for path, make in wanted.values():
        if path == STDOUT:
            console.answer(make(), end="")
        elif path:
            write_atomic(Path(path), make())


def announcements() -> Progress:
    """Return a function that writes one line when a level begins, for logs: a level may take minutes."""
    told: set[str] = set()

    def tell(level: str, done: int, total: int, id: str) -> None:
        if level not in told:
            told.add(level)
            sys.stderr.write(f"{level}: {total} checks\n")
            sys.stderr.flush()

    return tell


def progress() -> Progress:
    """Return a function that keeps one line of a terminal up to date: level, check, and about how long is left."""
    started: dict[str, float] = {}

    def tell(level: str, done: int, total: int, id: str) -> None:
        begun = started.setdefault(level, time.monotonic())
        spent = time.monotonic() - begun
        left = f", about {spent / done * (total - done):.0f} s left" if done else ""
        sys.stderr.write(f"\r\033[K{level} {done + 1}/{total} {id}{left}")
        if done + 1 == total:
            sys.stderr.write("\r\033[K")
        sys.stderr.flush()

    return tell
