"""`plugrl`: the entry point, which finds the command, and turns every error into one readable message."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS: dict[str, str] = {
    "train": "plugrl.cli.training:train",
    "sft": "plugrl.cli.training:sft",
    "eval": "plugrl.cli.training:evaluate",
    "report": "plugrl.cli.report:report",
    "config": "plugrl.cli.config:app",
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 an error, 2 wrong usage, 130 interrupted, 143 terminated."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    sys.exit(run([item for item in given if item != "--debug"], debug=debug))


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run one command and return its exit code; errors are printed on standard error."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    before = _catch_termination()
    try:
        quick = _answer_quickly(arguments)
        if quick is not None:
            return quick
        code = int(app(list(arguments), standalone_mode=False, prog_name="plugrl") or 0)
        # typer makes an exit code of Ctrl-C, or an exception, by version.
        return _interrupted() if code == 130 else code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except _Terminated:
        typer.echo("Terminated.", err=True)
        return 143
    except Exception as error:  # the boundary to the user: whatever happened becomes one message
        if debug:
            raise
        from plugrl.cli.errors import report_error

        return report_error(error)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _answer_quickly(arguments: Sequence[str]) -> int | None:
    """Answer `plugins list` without what typer imports to parse it; None for every other command."""
    if list(arguments[:2]) != ["plugins", "list"]:
        return None
    from plugrl.cli.plugins_list import answer_quickly

    return answer_quickly(arguments)


def _interrupted() -> int:
    typer.echo("Interrupted.", err=True)
    return 130


class _Terminated(BaseException):
    """SIGTERM arrived; what was opened is closed on the way out, as after Ctrl-C."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _catch_termination() -> Any:
    """Let SIGTERM unwind the stack; returns the previous handler, None outside the main thread."""
    try:
        return signal.signal(signal.SIGTERM, _terminate)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
