"""The commands and where each is; importing this module imports typer."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS: dict[str, str] = {
    "train": "plugrl.cli.training:train",
    "demos": "plugrl.cli.training:demos",
    "sft": "plugrl.cli.training:sft",
    "eval": "plugrl.cli.training:evaluate",
    "accept": "plugrl.cli.accept:accept",
    "report": "plugrl.cli.report:report",
    "plan": "plugrl.cli.plan:plan",
    "scale": "plugrl.cli.scale:scale",
    "config": "plugrl.cli.config:app",
    "checkpoint": "plugrl.cli.checkpoint:app",
    "data": "plugrl.cli.data:app",
    "plugins": "plugrl.cli.plugins:app",
}
"""Where each command is; it is imported only when it is called, or listed by the help."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return one command, None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        # The parent's suggestions for a mistyped name come from this table.
        command = self.commands.get(cmd_name)
        if command is None:
            command = self.commands[cmd_name] = _import_command(cmd_name)
        return command


def _import_command(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        single.command(name, context_settings=getattr(found, "context_settings", None))(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from plugrl import __version__

        typer.echo(f"plugrl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere in the line.")] = False,
) -> None:
    """Post-train policies by reinforcement learning. Chips, engines, models, simulators and rollouts are plugins."""


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code, 130 after Ctrl-C; other errors of the command are raised."""
    try:
        return int(app(list(arguments), standalone_mode=False, prog_name="plugrl") or 0)
    except typer.Abort:
        return 130
