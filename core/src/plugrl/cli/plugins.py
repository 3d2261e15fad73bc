"""``plugrl plugins``: what is installed, what became of it, and why."""

from __future__ import annotations

from typing import Any

import typer

from plugrl.cli import console
from plugrl.plugins.ledger import Ledger, PluginRecord
from plugrl.plugins.loader import load_plugins

app = typer.Typer(help="Show, diagnose and check plugins.", no_args_is_help=True)

AS_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command("list")
def list_plugins(
    show_all: bool = typer.Option(False, "--all", help="Also what is disabled, and every key that is provided."),
    as_json: bool = AS_JSON,
) -> None:
    """List the installed plugins with their states; answers with every plugin broken."""
    ledger = load_plugins(fatal=False, quiet=True)
    if as_json:
        console.print_json(ledger.to_dict())
    else:
        _show_list(ledger, show_all=show_all)
    if ledger.errors:
        if as_json:
            raise typer.Exit(1)
        console.fail("\n".join(str(error) for error in ledger.errors))


@app.command()
def doctor(
    name: str = typer.Argument(None, help="One plugin, by its own or its distribution's name."), as_json: bool = AS_JSON
) -> None:
    """Explain the state of this installation, or of one plugin; exit code 1 if anything is broken."""
    from plugrl.cli import plugins_doctor

    ledger = load_plugins(fatal=False, quiet=True)
    record = _named(ledger, name) if name else None
    report = plugins_doctor.examine(ledger, record)
    if as_json:
        console.print_json(report.data)
    else:
        plugins_doctor.show(report)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def explain(
    what: str = typer.Argument(..., help="engine or platform"),
    key: str = typer.Argument(None, help="For an engine: MODEL_TYPE/BACKEND. For a platform: its name, or nothing."),
    device: str = typer.Option(None, help="Look up as on this device."),
    vendor: str = typer.Option(None, help="Look up as with this vendor's device."),
    as_json: bool = AS_JSON,
) -> None:
    """Show how a look-up goes, step by step; exit code 1 if it finds nothing."""
    from plugrl.errors import ConfigError

    load_plugins(quiet=True)
    if what == "engine":
        _explain_engine(key, device, vendor, as_json=as_json)
    elif what == "platform":
        _explain_platform(key, as_json=as_json)
    else:
        raise ConfigError(f'"{what}" cannot be explained: write engine or platform.')


@app.command()
def check(
    name: str = typer.Argument(..., help="A plugin, by its own or its distribution's name."), as_json: bool = AS_JSON
) -> None:
    """Check that a plugin keeps to the rules for manifests; exit code 1 if it does not."""
    from dataclasses import asdict

    from plugrl.plugins.check import check_plugin

    checks = check_plugin(name)
    if as_json:
        console.print_json([asdict(item) for item in checks])
    else:
        rows = [(item.ok, item.name, item.detail, "" if item.ok else item.fix) for item in checks]
        console.show_table(("", "check", "found", "what to do"), rows)
    if not all(item.ok for item in checks):
        raise typer.Exit(1)


def _show_list(ledger: Ledger, *, show_all: bool) -> None:
    shown = [record for record in ledger.records if show_all or record.state != "disabled"]
    rows = [_row(record, show_all=show_all) for record in shown]
    columns = ("plugin", "version", "api", "state", "provides", "source")
    if rows:
        console.show_table(columns, rows)
    else:
        console.say("No plugin is in use." if ledger.records else "No plugin is installed.")
    for extension in ledger.extensions:
        console.say(f"extension module {extension.module}: {extension.state} {extension.reason}".rstrip())
    for record in shown:
        if record.state != "active":
            console.say(record.sentence())
    hidden = len(ledger.records) - len(shown)
    if hidden:
        console.say(f"{hidden} disabled; --all shows them.")


def _row(record: PluginRecord, *, show_all: bool) -> tuple[Any, ...]:
    manifest = record.manifest
    source = f"{record.distribution or '?'}{' (editable)' if record.path else ''}"
    provides = record.provides()
    if show_all:
        text = "\n".join(f"{kind} {key}" for kind, keys in provides.items() for key in keys)
    else:
        text = ", ".join(f"{len(keys)} {kind}{'s' if len(keys) > 1 else ''}" for kind, keys in provides.items())
    return record.name, record.version or "?", manifest.api if manifest else "?", record.state, text, source


def _named(ledger: Ledger, name: str) -> PluginRecord:
    from plugrl.errors import PluginError

    record = ledger.find(name)
    if record is None:
        raise PluginError(ledger.not_installed(name))
    return record


def _explain_engine(key: str | None, device: str | None, vendor: str | None, *, as_json: bool) -> None:
    from plugrl.engines.registry import EngineRegistry
    from plugrl.errors import ConfigError

    model_type, _, backend = (key or "").partition("/")
    if not model_type or not backend:
        raise ConfigError(f'"{key or ""}" names no engine: write MODEL_TYPE/BACKEND, such as language_model/fsdp2.')
    found = EngineRegistry.explain(model_type, backend, device=device, vendor=vendor)
    if as_json:
        console.print_json(found.to_dict())
    else:
        console.say(*found.lines())
    if found.entry is None:
        raise typer.Exit(1)


def _explain_platform(name: str | None, *, as_json: bool) -> None:
    from plugrl.platforms.selection import select

    selection = select(name)
    if as_json:
        console.print_json(selection.to_dict())
        return
    for record in selection.probes:
        state = "available" if record.available else "not usable"
        console.say(f"{record.platform} (priority {record.priority}): {state} {record.reason}".rstrip())
    console.say(f"-> {selection.platform_name}: {selection.why}")
