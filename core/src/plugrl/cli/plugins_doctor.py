"""What ``plugrl plugins doctor`` examines and shows. Only the questions to the chosen platform import torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform as host
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

import plugrl
from plugrl.cli import console
from plugrl.cli.platform_facts import platform_facts
from plugrl.environment import in_force, unknown_variables
from plugrl.errors import PlugRLError
from plugrl.plugins import hooks
from plugrl.plugins.check import IMPORT_BUDGET_MS
from plugrl.plugins.hookspecs import Check
from plugrl.plugins.ledger import Ledger, PluginRecord
from plugrl.registry import registries

LIBRARIES = ("torch", "ray", "transformers", "pluggy", "pydantic")


@dataclass
class Report:
    """The examination as plain values for ``--json``, and what is wrong, each as one line."""

    data: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def examine(ledger: Ledger, only: PluginRecord | None = None) -> Report:
    """Examine this process, or one plugin of it."""
    report = Report()
    records = [only] if only else list(ledger.records)
    report.problems += [record.sentence() for record in records if record.is_broken]
    report.data["plugins"] = [record.to_dict() for record in records]
    report.data["registries"] = _entries_of(only)
    report.data["hook_failures"] = [asdict(failure) for failure in hooks.failures() if _concerns(failure.plugin, only)]
    if only is None:
        _examine_process(ledger, report)
    report.data["problems"] = report.problems
    return report


def _examine_process(ledger: Ledger, report: Report) -> None:
    report.problems += [str(error) for error in ledger.errors]
    report.data["environment"] = _environment()
    report.data["variables"] = in_force()
    report.data["unknown_variables"] = unknown_variables()
    report.data["fingerprint"] = ledger.fingerprint
    report.data["extensions"] = [record.to_dict() for record in ledger.extensions]
    report.data["platform"] = _platform(report)
    checks: list[Check] = [check for result in hooks.fire("doctor_checks") for check in result]
    report.data["checks"] = [asdict(check) for check in checks]
    report.problems += [f"{check.name}: {check.detail} {check.fix}".strip() for check in checks if not check.ok]


def _environment() -> dict[str, Any]:
    versions: dict[str, str | None] = {"plugrl": plugrl.__version__}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "python": f"{host.python_version()} ({sys.executable})",
        "system": f"{host.system()} {host.machine()}, {os.cpu_count()} processors",
        "versions": versions,
    }


def _platform(report: Report) -> dict[str, Any]:
    from plugrl.platforms.probing import probe_all
    from plugrl.platforms.selection import select

    probes = [asdict(record) for record in probe_all()]
    try:
        chosen = select()
    except PlugRLError as error:
        report.problems.append(str(error))
        return {"platform_name": None, "why": str(error), "probes": probes, "facts": {}}
    facts = platform_facts(chosen.platform_name, report.problems)
    return {**chosen.to_dict(), "probes": probes, "facts": facts}


def _entries_of(only: PluginRecord | None) -> list[dict[str, Any]]:
    rows = [row for registry in registries().values() for row in registry.describe()]
    mine = None if only is None else (only.name, only.distribution)  # a shadowed plugin shares its name
    return [row for row in rows if mine in (None, (row["origin"]["plugin"], row["origin"]["distribution"]))]


def _concerns(plugin: str, only: PluginRecord | None) -> bool:
    return only is None or plugin == only.name


def show(report: Report) -> None:
    """Print a report for a reader."""
    data = report.data
    if "environment" in data:
        _show_process(data)
    for row in data["plugins"]:
        _show_plugin(row)
    if data["registries"]:
        console.heading("Registries")
        rows = [(row["kind"], row["key"], row["target"], _provenance(row)) for row in data["registries"]]
        console.show_table(("kind", "key", "target", "from"), rows)
    for failure in data["hook_failures"]:
        console.say(f"hook {failure['hook']} of {failure['plugin']}: {failure['reason']}", failure["traceback"])
    console.heading("Verdict")
    console.say(*(report.problems or ["Nothing is wrong."]))


def _show_process(data: dict[str, Any]) -> None:
    console.heading("Environment")
    environment = data["environment"]
    console.say(f"python {environment['python']}", environment["system"])
    console.say(*(f"{name} {version or 'not installed'}" for name, version in environment["versions"].items()))
    console.say(f"plugin fingerprint {data['fingerprint']}")
    console.heading("Variables in force")
    console.say(*([f"{name}={value}" for name, value in data["variables"].items()] or ["none"]))
    for name, like in data["unknown_variables"].items():
        console.warn(f"nothing reads {name}" + (f"; did you mean {like}?" if like else ""))
    console.heading("Platform")
    for probe in data["platform"]["probes"]:
        state = "available," if probe["available"] else "not usable:"
        console.say(f"{probe['platform']} (priority {probe['priority']}): {state} {probe['reason']}".rstrip(" ,:"))
    console.say(f"-> {data['platform']['platform_name']}: {data['platform']['why']}")
    console.say(*(f"   {question}: {answer}" for question, answer in data["platform"]["facts"].items()))
    for row in data["extensions"]:
        console.heading(f"Extension module {row['module']}")
        console.say(f"{row['state']} in {row['import_ms']:.0f} ms {row['reason']}".rstrip(), *_text(row["traceback"]))
    for check in data["checks"]:
        console.say(f"{'ok' if check['ok'] else 'FAIL'} {check['name']} {check['detail']}".rstrip())


def _show_plugin(row: dict[str, Any]) -> None:
    console.heading(f"Plugin {row['name']}")
    console.say(f"{row['distribution'] or '?'} {row['version'] or '?'}, {row['entry']}")
    if row["path"]:
        console.say(f"editable from {row['path']}")
    console.say(f"{row['state']}: {row['reason']}" if row["reason"] else row["state"])
    slow = " (slow)" if row["import_ms"] > IMPORT_BUDGET_MS else ""
    spent = ", ".join(f"{phase} {value:.1f} ms" for phase, value in row["timings_ms"].items())
    if spent:
        console.say(spent + slow)
    if row["heavy_imports"]:
        console.say(f"its manifest imports {', '.join(row['heavy_imports'])}, which it should not")
    for target in row["patches"]:
        console.say(f"patches {target}")
    console.say(*_text(row["traceback"]))


def _text(text: str | None) -> list[str]:
    return [text.rstrip()] if text else []


def _provenance(row: dict[str, Any]) -> str:
    from plugrl.provenance import Origin

    parts = [str(Origin(**row["origin"])), *(f"overrides {past}" for past in row["overrides"])]
    if row["error"]:
        parts.append(f"broken: {row['error']}")
    return "; ".join(parts)
