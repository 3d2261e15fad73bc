"""Success by task and split in the report, at the first and the last measurement of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_SUCCESS = "eval/success_once/"
_WHOLE = "eval/success_once"


def task_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each task and split and one for all, empty where nothing was measured by task."""
    measured = [row for row in rows if any(key.startswith(_SUCCESS) for key in row)]
    if not measured:
        return ""
    ends = [measured[0], measured[-1]] if len(measured) > 1 else measured
    names = dict.fromkeys(key.removeprefix(_SUCCESS) for row in ends for key in row if key.startswith(_SUCCESS))
    by_kind = sorted(names, key=lambda name: "." in name)  # no name of a task has a dot
    head = "".join(f"<th>step {row.get('step', '?')}</th>" for row in ends)
    lines = [_line(name, name.replace("split.", "split "), ends) for name in by_kind]
    lines.append(_line("", "all", ends))
    return (
        f'<h2>Success by task</h2><div class="card scroll"><table><tr><th></th><th class="number">Episodes</th>{head}'
        f"</tr>{''.join(lines)}</table></div>"
    )


def _line(name: str, label: str, ends: Sequence[Mapping[str, Any]]) -> str:
    key = f"/{name}" if name else ""
    count = ends[-1].get(f"eval/num_trajectories{key}")
    number = "" if not isinstance(count, int | float) else f"{count:.0f}"
    cells = "".join(f"<td>{_share(row, key)}</td>" for row in ends)
    return f'<tr><td>{escape(label)}</td><td class="number">{number}</td>{cells}</tr>'


def _share(row: Mapping[str, Any], key: str) -> str:
    """Return a share with its interval as a bar on which a line shows where the interval lies."""
    values = [row.get(f"{_WHOLE}{part}{key}") for part in ("", "_low", "_high")]
    if not all(isinstance(value, int | float) for value in values):
        return ""
    value, low, high = (min(max(float(item), 0.0), 1.0) for item in values if item is not None)
    return (
        f'<div class="share"><span>{value:.1%}</span><i><b style="width:{value:.1%}"></b>'
        f'<u style="left:{low:.1%};width:{high - low:.1%}"></u></i><em>{low:.1%} to {high:.1%}</em></div>'
    )
