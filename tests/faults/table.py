"""The measured outcomes of faults as a table, and as JSON where PLUGRL_FAULTS names a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from trial import PHASES, Cell, Outcome

FILE = "PLUGRL_FAULTS"


def table(outcomes: Mapping[Cell, Outcome]) -> str:
    """Return a row for each component and fault: what each phase ended with, after how many seconds."""
    rows = list(dict.fromkeys((cell.component, cell.fault) for cell in outcomes))
    lines = [f"{'component':9} {'fault':9} " + " ".join(f"{phase:>21}" for phase in PHASES)]
    for component, fault in rows:
        found = [outcomes.get(Cell(component, fault, phase)) for phase in PHASES]
        texts = ["-" if one is None else f"{one.error or 'goes on'} {one.seconds:.1f} s" for one in found]
        lines.append(f"{component:9} {fault:9} " + " ".join(f"{text:>21}" for text in texts))
    return "\n".join(lines)


def record(outcomes: Mapping[Cell, Outcome]) -> None:
    """Print the table and add the outcomes to the file, if one is wanted."""
    print("\n" + table(outcomes))
    path = Path(os.environ.get(FILE, ""))
    if FILE not in os.environ:
        return
    known = json.loads(path.read_text()) if path.exists() else []
    cells = [
        {**asdict(cell), "error": one.error, "seconds": round(one.seconds, 2), "again_s": round(one.again_s, 2)}
        for cell, one in outcomes.items()
    ]
    path.write_text(json.dumps([*known, *cells], indent=1) + "\n")
