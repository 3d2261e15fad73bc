"""What every command prints with: one console for answers, one for errors, tables and JSON.

Answers go to standard output, everything else to standard error, so that an answer can be piped. That includes what
plugins and their libraries print, see :func:`reserve_output`. rich is imported on first use: a command that prints JSON
does not wait for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 200
"""Columns to lay tables out for when nobody's terminal tells; lines of text are never broken there."""

_reserved: TextIO | None = None
_diverted: int | None = None

MARKS = {True: "[green]ok[/green]", False: "[red]FAIL[/red]"}


def reserve_output() -> None:
    """Keep standard output for the answers of this process until :func:`release_output`.

    Whatever else writes there, be it Python's ``print`` or a C library, gets standard error instead. Does nothing where
    the streams are no files.
    """
    global _reserved, _diverted
    if _reserved is not None:
        return
    try:
        sys.stdout.flush()
        _diverted = sys.stdout.fileno()
        kept = os.dup(_diverted)
        os.dup2(sys.stderr.fileno(), _diverted)
    except (AttributeError, OSError, ValueError):
        return
    _reserved = open(kept, "w", encoding=sys.stdout.encoding, errors="backslashreplace")


def release_output() -> None:
    """Undo :func:`reserve_output`: for processes that run several commands."""
    global _reserved
    if _reserved is None or _diverted is None:
        return
    reserved, _reserved = _reserved, None
    with reserved:
        sys.stdout.flush()
        os.dup2(reserved.fileno(), _diverted)


def answer(text: str, end: str = "\n") -> None:
    """Print a text to standard output as it is."""
    print(text, end=end, file=_reserved or sys.stdout, flush=True)


def out() -> Console:
    """Return the console for answers."""
    return _console(_reserved or sys.stdout)


@lru_cache(maxsize=1)
def err() -> Console:
    """Return the console for errors, warnings and progress."""
    return _console(None)


def say(*lines: str) -> None:
    """Print plain lines to standard output, one each, without markup and never broken."""
    for line in lines:
        out().print(line, markup=False, highlight=False, soft_wrap=True)


def heading(text: str) -> None:
    """Print the heading of a section."""
    out().print(f"\n{text}", style="bold", markup=False, highlight=False)


def warn(message: str) -> None:
    """Print a warning to standard error."""
    err().print(f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def complain(message: str) -> None:
    """Print one readable error to standard error."""
    err().print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print plain values as indented JSON."""
    answer(json.dumps(value, indent=2, default=str))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table; cells are texts (never markup), ``bool`` cells become ok or FAIL."""
    out().print(_table(columns, rows, title))


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay texts out in columns, without rich: its import takes longer than everything ``plugins list`` does.

    A cell may have several lines.
    """
    cells = [[cell.split("\n") for cell in row] for row in (columns, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(columns))]
    blocks = []
    for row in cells:
        height = max(map(len, row))
        padded = [lines + [""] * (height - len(lines)) for lines in row]
        blocks += ["  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
                   for line in zip(*padded, strict=True)]  # fmt: skip
    blocks.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(blocks)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(MARKS[cell] if isinstance(cell, bool) else Text(str(cell)) for cell in row))
    return table


def _console(stream: TextIO | None) -> Console:
    """Return a console on a stream, on standard error for None."""
    from rich.console import Console

    is_terminal = (stream or sys.stderr).isatty()
    width = None if is_terminal or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(file=stream, stderr=stream is None, width=width)
