"""A report for readers and machines: table, Markdown, JSON, JUnit. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from plugrl.platforms.capabilities import LEVELS, PLATFORM_CAPABILITIES, level_of
from plugrl.testing.kit.results import FORMAT, CheckResult, Report, Status, span

WORDS: dict[Status, str] = {
    "supported": "yes",
    "failed": "**FAILS**",
    "not_declared": "not declared",
    "works_undeclared": "works, not declared",
    "xfail": "known failure",
    "blocked": "blocked",
    "skipped": "not checked here",
}
_BAD_XML = {code: None for code in range(32) if code not in (9, 10, 13)}


def as_json(reports: Sequence[Report]) -> str:
    """Return the text of ``capabilities.json``."""
    return json.dumps({"format": FORMAT, "reports": [report.to_dict() for report in reports]}, indent=1) + "\n"


def as_markdown(report: Report) -> str:
    """Return the capability matrix for a README, with what it was measured with."""
    name = report.platform or report.plugin
    versions = ", ".join(f"{key} {value}" for key, value in report.versions.items())
    lines = [
        f"<!-- written by `plugrl plugins check {name} --markdown`; do not edit -->",
        f"`{name}`: {report.summary()} ({versions}; {report.devices or 'no device'}).",
        "",
    ]
    rows = [(name, status) for name, status in report.matrix().items()]
    if rows:
        lines += ["| level | capability | | what it means |", "|---|---|---|---|"]
        lines += [f"| {level_of(key)} | `{key}` | {WORDS[status]} | {PLATFORM_CAPABILITIES[key]} |"
                  for key, status in rows]  # fmt: skip
    others = [result for result in report.results if result.capability is None and result.level != "L0"]
    if others:
        lines += ["| kit | check | | what it asks |", "|---|---|---|---|"]
        lines += [f"| {row.level} | `{row.id}` | {WORDS[row.status]} | {row.requirement} |" for row in others]
    manifest = [result for result in report.results if result.level == "L0"]
    if manifest:
        passed = sum(result.status == "supported" for result in manifest)
        lines += ["", f"Manifest (L0): {passed} of {len(manifest)} checks passed."]
    notes = [f"- `{result.id}`: {result.note}" for result in report.results if result.note]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def as_junit(reports: Sequence[Report]) -> str:
    """Return JUnit XML: a suite for each level, a case for each check."""
    root = ElementTree.Element("testsuites", name="plugrl-conformance")
    for report in reports:
        for level in dict.fromkeys(result.level for result in report.results):
            rows = [result for result in report.results if result.level == level]
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=f"{report.platform or report.plugin}.{level}",
                tests=str(len(rows)),
                failures=str(sum(row.status == "failed" for row in rows)),
                skipped=str(sum(row.status in ("not_declared", "blocked", "skipped", "xfail") for row in rows)),
                time=f"{sum(row.seconds for row in rows):.3f}",
                timestamp=report.date,
            )
            for row in rows:
                _add_case(suite, row)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, row: CheckResult) -> None:
    title = LEVELS.get(row.level, row.level)
    case = ElementTree.SubElement(suite, "testcase", classname=f"{row.level}.{title}", name=row.id,
                                  time=f"{row.seconds:.3f}")  # fmt: skip
    text = row.detail.translate(_BAD_XML)
    if row.status == "failed":
        body = ElementTree.SubElement(case, "failure", message=text.splitlines()[0] if text else row.requirement)
        body.text = f"{row.requirement}\n{text}\n{row.fix}".strip()
    elif row.status in ("not_declared", "blocked", "skipped", "xfail"):
        ElementTree.SubElement(case, "skipped", message=f"{row.status.replace('_', ' ')} {row.note or text}".strip())


def report_lines(report: Report) -> list[str]:
    """Return what a terminal shows after the tables: what was not run and why, notes, counts and the verdict."""
    lines: list[str] = []
    reasons: dict[tuple[Status, str], list[str]] = {}
    for result in report.results:
        if result.status in ("blocked", "skipped"):
            reasons.setdefault((result.status, result.detail), []).append(result.id)
    for (status, why), names in reasons.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        lines.append(f"{status}: {shown}: {why}")
    absent = [name for name, status in report.matrix().items() if status == "not_declared"]
    if absent:
        lines.append(f"not declared: {', '.join(absent)}")
    lines += [f"{result.id}: {result.note}" for result in report.results if result.note]
    works = [result.id for result in report.results if result.status == "works_undeclared"]
    if works:
        lines.append(f"works, but is not declared: {', '.join(works)}")
    counts = ", ".join(f"{status.replace('_', ' ')} {count}" for status, count in report.counts.items()) or "none"
    if not report.executed:
        lines.append("No check was executed, which proves nothing.")
    name = report.platform or report.plugin
    if report.only:
        verdict = "passes" if report.passed else "does NOT pass"
        lines.append(f"{name} {verdict} what was asked for of {span(report.levels)}: checks {counts}.")
    else:
        verdict = "conforms to" if report.passed else "does NOT conform to"
        lines.append(f"{name} {verdict} {span(report.levels)}: checks {counts}.")
    return lines
