"""``plugrl plugins``: what is installed, what became of it, and why."""

from __future__ import annotations

from pathlib import Path

import typer

from plugrl.cli import console, plugins_list, plugins_new
from plugrl.plugins.ledger import Ledger, PluginRecord
from plugrl.plugins.loader import load_plugins

app = typer.Typer(add_completion=False, help="Show, diagnose and check plugins.", no_args_is_help=True)

AS_JSON = typer.Option(False, "--json", help="Print JSON.")

app.command("new")(plugins_new.new)


@app.command("list")
def list_plugins(
    show_all: bool = typer.Option(False, "--all", help="Also what is disabled, and every key that is provided."),
    as_json: bool = AS_JSON,
) -> None:
    """List the installed plugins with their states; answers with every plugin broken."""
    code = plugins_list.answer(show_all=show_all, as_json=as_json)
    if code:
        raise typer.Exit(code)


@app.command()
def doctor(
    name: str = typer.Argument(None, help="One plugin, by its own or its distribution's name."),
    cluster: str = typer.Option(
        None, "--cluster", metavar="ADDRESS", help="Compare the nodes of this Ray cluster; auto: of this machine's."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Explain the state of this installation, of one plugin, or of a cluster; exit code 1 if anything is broken."""
    from plugrl.cli import plugins_cluster, plugins_doctor

    console.reserve_output()
    ledger = load_plugins(fatal=False, quiet=True)
    if cluster is not None:
        raise typer.Exit(plugins_cluster.answer(cluster, ledger, as_json=as_json))
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

    console.reserve_output()
    load_plugins(quiet=True)
    if what == "engine":
        _explain_engine(key, device, vendor, as_json=as_json)
    elif what == "platform":
        _explain_platform(key, as_json=as_json)
    else:
        raise ConfigError(f'"{what}" cannot be explained: write engine or platform.')


@app.command()
def check(
    name: str = typer.Argument(..., help="A plugin, by its own or its distribution's name, or a platform."),
    level: list[str] = typer.Option([], "--level", help="L0 to L5, a range such as L0-L3, or all; may be repeated."),
    only: list[str] = typer.Option([], "--only", metavar="ID", help="Run this check alone; may be repeated."),
    probe_undeclared: bool = typer.Option(False, help="Also try what the platform does not declare."),
    json: str = typer.Option("", metavar="FILE", help="Write the record as JSON; - prints it."),
    junit: str = typer.Option("", metavar="FILE", help="Write JUnit XML; - prints it."),
    markdown: str = typer.Option("", metavar="FILE", help="Write the table for a README; - prints it."),
    pyproject: Path = typer.Option(None, metavar="FILE", help="Where [tool.plugrl-conformance] stands."),
) -> None:
    """Check that a plugin does what it promises: its manifest, and what its devices can do.

    Levels: L0 manifest, L1 device, L2 numerics, L3 distributed, L4 runtime, L5 reinforcement learning; engine, model,
    policy, env and rollout for plugins that contribute them. Without --level everything that applies is run. Exit code
    1 if anything fails, if nothing was executed, or if a level that was asked for could not be run.
    """
    from plugrl.cli import plugins_check

    options = plugins_check.CheckOptions(
        levels=level,
        only=only,
        probe_undeclared=probe_undeclared,
        json=json,
        junit=junit,
        markdown=markdown,
        pyproject=pyproject,
    )
    code = plugins_check.run(name, options)
    if code:
        raise typer.Exit(code)


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
        state = "available," if record.available else "not usable:"
        console.say(f"{record.platform} (priority {record.priority}): {state} {record.reason}".rstrip(" ,:"))
    console.say(f"-> {selection.platform_name}: {selection.why}")
