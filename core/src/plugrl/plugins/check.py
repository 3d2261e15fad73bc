"""The manifest level of ``plugrl plugins check``: what a plugin must keep to before any of its code is used.

It runs in a process of its own (``python -m plugrl.plugins.check NAME``), because only there an import tells what the
manifest alone pulls in, and how long it takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from plugrl.errors import PluginError, UserError
from plugrl.plugins.discovery import discover
from plugrl.plugins.hookspecs import Check
from plugrl.plugins.ledger import PluginRecord
from plugrl.plugins.loader import load_plugins
from plugrl.plugins.manifest import Plugin
from plugrl.plugins.stage import Staged, stage_plugin
from plugrl.registry import registries
from plugrl.targets import missing_in_source

IMPORT_BUDGET_MS = 250.0
"""Time that the import of a manifest may take: with twenty plugins it is what a user waits for ``--help``."""

DEADLINE_S = 60.0

_MARKER = "\n@plugrl "
"""Stands before the answer of the process; what plugins print may come before and after."""


def check_plugin(name: str) -> list[Check]:
    """Check an installed plugin by its own or its distribution's name, in a process of its own.

    Raises:
        PluginError: no such plugin is installed, or the process ends without an answer within :data:`DEADLINE_S`.
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("PLUGRL_PLUGINS", "PLUGRL_STRICT")}
    command = [sys.executable, "-m", "plugrl.plugins.check", name]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S
        )
    except subprocess.TimeoutExpired as error:
        raise PluginError(f"Loading {name} took more than {DEADLINE_S:.0f} s: something hangs at import.") from error
    answer = done.stdout.rpartition(_MARKER)[2]
    try:
        # What a plugin prints when the process ends may follow.
        rows, _ = json.JSONDecoder().raw_decode(answer)
        return [Check(**row) for row in rows]
    except (TypeError, ValueError) as error:
        said = done.stderr.strip().splitlines()[-1:]
        ended = f"The process that loads {name} ended with {done.returncode}, without an answer."
        raise PluginError(said[0] if done.returncode == 1 and said else " ".join([ended, *said])) from error


def run_checks(name: str) -> Iterator[Check]:
    """Load all plugins in this process and yield the checks of one of them.

    Raises:
        PluginError: no such plugin is installed.
    """
    ledger = load_plugins(fatal=False, quiet=True)
    record = ledger.find(name)
    if record is None:
        raise PluginError(ledger.not_installed(name))
    yield Check(
        name="loads",
        ok=record.state == "active",
        detail=record.reason if record.state != "active" else f"as {record.title}",
        fix=f"`plugrl plugins doctor {record.name}` shows the traceback.",
    )
    yield from _check_import(record)
    if record.manifest is not None:
        yield _check_targets(record.manifest)
    if record.state == "active":
        yield _check_again(record)


def _check_import(record: PluginRecord) -> Iterator[Check]:
    yield Check(
        name="light import",
        ok=not record.heavy_imports,
        detail=f"imports {', '.join(record.heavy_imports)}" if record.heavy_imports else "no large library",
        fix="Import them in the modules that the targets name, not in the manifest's.",
    )
    yield Check(
        name="import time",
        ok=record.import_ms <= IMPORT_BUDGET_MS,
        detail=f"{record.import_ms:.0f} ms of {IMPORT_BUDGET_MS:.0f} ms",
        fix="Move the work out of the manifest's module and its package.",
    )


def _check_targets(manifest: Plugin) -> Check:
    missing = [text for text in map(missing_in_source, _all_targets(manifest)) if text]
    return Check(
        name="targets exist",
        ok=not missing,
        detail="; ".join(missing) or f"{len(list(_all_targets(manifest)))} found",
        fix="Write targets as package.module:attribute, and ship the module in the wheel.",
    )


def _all_targets(manifest: Plugin) -> Iterator[str]:
    for entry in manifest.entries():
        yield entry.target
        for field in ("probe", "schema", "processor", "example", "observations"):
            target = getattr(entry, field, None)
            if target is not None:
                yield target
        for section in getattr(entry, "sections", ()):
            yield section.schema
    for patch in manifest.patches:
        yield patch.replacement


def _check_again(record: PluginRecord) -> Check:
    """Import the manifest's module anew and load once more: the registries must stay as they are."""
    before = _content()
    # Not importlib.reload: like any other failure of the import, a second one is to be a state and not an error here.
    sys.modules.pop(record.value.partition(":")[0], None)
    found = next(item for item in discover() if item.value == record.value and item.name == record.name)
    again = stage_plugin(found)
    problem = again.record.reason or _apply_again(again)
    same = not problem and _content() == before
    return Check(
        name="loading twice changes nothing",
        ok=same,
        detail=problem or ("" if same else "the registries differ"),
        fix="Register the same objects at each import, without side effects elsewhere.",
    )


def _apply_again(staged: Staged) -> str:
    from plugrl.plugins.commit import apply_all

    try:
        apply_all(staged.claims)
    except PluginError as error:
        return str(error)
    return ""


def _content() -> list[dict[str, Any]]:
    return [row for registry in registries().values() for row in registry.describe()]


def main() -> int:
    """Print the checks of the plugin in ``sys.argv[1]`` as JSON after a marker; other output may come before."""
    try:
        rows = [asdict(check) for check in run_checks(sys.argv[1])]
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    print(_MARKER + json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
