"""What the user sees of an error."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback

from plugrl.errors import PlugRLError


def report_error(error: Exception) -> int:
    """Print one message for an error on standard error and return the exit code.

    A PlugRLError speaks for itself. Wrong usage shows the usage. Anything else is a defect: one line, and the traceback
    in a file.
    """
    if hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()
        return int(error.exit_code)
    if isinstance(error, PlugRLError):
        _print(str(error))
        return 1
    path = _write_traceback(error)
    _print(f"{type(error).__name__}: {_first_line(error)}\nThe traceback is in {path}; --debug shows it here.")
    return 1


def _print(message: str) -> None:
    prefix = "\033[1;31merror:\033[0m " if _colored() else "error: "
    print(prefix + message, file=sys.stderr, flush=True)


def _colored() -> bool:
    return sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "(no message)"


def _write_traceback(error: Exception) -> str:
    descriptor, path = tempfile.mkstemp(prefix="plugrl-error-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    return path
