"""The measured outcomes of faults as a table, and as JSON where PLUGRL_FAULTS names a file.

`python tests/faults/table.py FILE` prints what several runs of the tests have written as the table of docs/faults.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

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


def markdown(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each component and fault: what it ends with and the seconds, phase by phase.

    The last measurement of a cell counts. Seconds of a phase that ends with something else than the row says so.
    """
    known = {(cell["component"], cell["fault"], cell["phase"]): cell for cell in cells}
    lines = [
        "| component | fault | ends with | " + " | ".join(PHASES) + " |",
        "|---|---|---|" + "---|" * len(PHASES),
    ]
    for component, fault in dict.fromkeys((one, two) for one, two, _ in known):
        row = [known.get((component, fault, phase)) for phase in PHASES]
        errors = [cell["error"] or "goes on" for cell in row if cell is not None]
        usual = max(dict.fromkeys(errors), key=errors.count)
        texts = []
        for cell in row:
            other = "" if cell is None or (cell["error"] or "goes on") == usual else f" {cell['error'] or 'goes on'}"
            texts.append("" if cell is None else f"{cell['seconds']:.1f}{other}")
        lines.append(f"| {component} | {fault} | {usual} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
