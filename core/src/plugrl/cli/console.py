"""What every command prints with: one console for answers, one for errors, tables and JSON.

Answers go to standard output, everything else to standard error, so that an answer can be piped. rich is imported on
first use: a command that prints JSON does not wait for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 200
"""Columns to lay tables out for when nobody's terminal tells; lines of text are never broken there."""

MARKS = {True: "[green]ok[/green]", False: "[red]FAIL[/red]"}


@lru_cache(maxsize=1)
def out() -> Console:
    """Return the console for answers."""
    return _console(sys.stdout.isatty(), stderr=False)


@lru_cache(maxsize=1)
def err() -> Console:
    """Return the console for errors, warnings and progress."""
    return _console(sys.stderr.isatty(), stderr=True)


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


def fail(message: str, code: int = 1) -> NoReturn:
    """Print one readable error to standard error and end the command with ``code``."""
    import typer

    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Print one readable error to standard error."""
    err().print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print plain values as indented JSON."""
    print(json.dumps(value, indent=2, default=str))


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


def _console(is_terminal: bool, *, stderr: bool) -> Console:
    from rich.console import Console

    width = None if is_terminal or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(stderr=stderr, width=width)
