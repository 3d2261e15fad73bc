"""`plugrl`: the entry point, which runs the command and turns every error into one readable message.

typer is imported only for a command line that needs it: see :mod:`plugrl.cli.plugins_list`.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from plugrl.cli import console
from plugrl.errors import Terminated

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 an error, 2 wrong usage, 130 interrupted, 143 terminated."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an answer must not fail at a letter of somebody's name
    sys.exit(_run([item for item in given if item != "--debug"], debug=debug))


def run(arguments: Sequence[str], *, debug: bool = False) -> int:
    """Run one command and return its exit code; errors are printed on standard error."""
    try:
        return _run(arguments, debug=debug)
    finally:
        console.release_output()


def _run(arguments: Sequence[str], *, debug: bool) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    before = _catch_termination()
    try:
        quick = _answer_quickly(arguments)
        if quick is not None:
            return quick
        from plugrl.cli.commands import run_command

        code = run_command(arguments)
        return _interrupted() if code == INTERRUPTED else code
    except KeyboardInterrupt:
        return _interrupted()
    except Terminated:
        print("Terminated.", file=sys.stderr)
        return 143
    except BrokenPipeError:
        # Whoever read the answer has seen enough; the null device takes what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
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
    print("Interrupted.", file=sys.stderr)
    return INTERRUPTED


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _catch_termination() -> Any:
    """Let SIGTERM unwind the stack; returns the previous handler, None outside the main thread."""
    try:
        return signal.signal(signal.SIGTERM, _terminate)
    except ValueError:
        return None


if __name__ == "__main__":
    main()
