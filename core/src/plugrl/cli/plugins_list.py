"""``plugrl plugins list``, which has to answer at once and whatever is broken.

typer, which imports pydantic to build a command's parameters, and rich each take longer than everything else here
together. :func:`answer_quickly` understands this one command without them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from plugrl.cli import console
from plugrl.plugins.ledger import Ledger, PluginRecord
from plugrl.plugins.loader import load_plugins

_OPTIONS = {"--all", "--json"}


def answer_quickly(arguments: Sequence[str]) -> int | None:
    """Run the command line ``arguments`` if it is this command with options that need no explanation.

    Returns its exit code, or None for any other command line, which is then typer's.
    """
    options = set(arguments[2:])
    if tuple(arguments[:2]) != ("plugins", "list") or not options <= _OPTIONS:
        return None
    return answer(show_all="--all" in options, as_json="--json" in options)


def answer(*, show_all: bool, as_json: bool) -> int:
    """Print the installed plugins with their states; return 1 if the user depends on one that is broken, else 0."""
    console.reserve_output()
    ledger = load_plugins(fatal=False, quiet=True)
    if as_json:
        answer = ledger.to_dict()
        for row, record in zip(answer["plugins"], ledger.records, strict=True):
            row["conformance"] = conformance(record)
        console.print_json(answer)
    else:
        _show(ledger, show_all=show_all)
        for error in ledger.errors:
            console.complain(str(error))
    return 1 if ledger.errors else 0


def _show(ledger: Ledger, *, show_all: bool) -> None:
    shown = [record for record in ledger.records if show_all or record.state != "disabled"]
    rows = [_row(record, show_all=show_all) for record in shown]
    columns = ("plugin", "version", "api", "state", "provides", "source")
    if rows:
        console.answer(console.plain_table(columns, rows))
    else:
        console.answer("No plugin is in use." if ledger.records else "No plugin is installed.")
    for extension in ledger.extensions:
        console.answer(f"extension module {extension.module}: {extension.state} {extension.reason}".rstrip())
    for record in shown:
        if record.state != "active":
            console.answer(record.sentence())
        for line in conformance(record) if show_all else ():
            console.answer(f"{record.name} conformance: {line}")
    hidden = len(ledger.records) - len(shown)
    if hidden:
        console.answer(f"{hidden} disabled; --all shows them.")


def conformance(record: PluginRecord) -> list[str]:
    """Return a line for each report in the ``capabilities.json`` that a plugin ships beside its manifest's module."""
    module = sys.modules.get(record.value.partition(":")[0])
    file = getattr(module, "__file__", None)
    if not file or not os.path.exists(path := os.path.join(os.path.dirname(file), "capabilities.json")):
        return []
    try:
        with open(path, encoding="utf-8") as stream:
            return [_one_report(report) for report in json.load(stream)["reports"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        return [f"{path} cannot be read ({type(error).__name__}: {error})"]


def _one_report(report: dict[str, Any]) -> str:
    subject = f"{report['platform']}: " if report["platform"] else ""
    return f"{subject}{report['summary']}"


def _row(record: PluginRecord, *, show_all: bool) -> tuple[str, ...]:
    manifest = record.manifest
    source = f"{record.distribution or '?'}{' (editable)' if record.path else ''}"
    provides = record.provides()
    if show_all:
        text = "\n".join(f"{kind} {key}" for kind, keys in provides.items() for key in keys)
    else:
        text = ", ".join(f"{len(keys)} {kind}{'s' if len(keys) > 1 else ''}" for kind, keys in provides.items())
    return record.name, record.version or "?", str(manifest.api) if manifest else "?", record.state, text, source
