"""A plan drawn as bars: for each device what it does over one iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from string import ascii_lowercase

from plugrl.runtime.planner.case import Case, Plan
from plugrl.runtime.planner.simulation import Span, first_device, spans

IDLE = ("", "idle")
Cell = tuple[str, str]
"""A component, and ``compute``, ``onload``, ``offload`` or ``idle``."""

_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
_LEFT, _WIDTH, _ROW, _TOP = 90, 720, 26, 8


@dataclass(frozen=True)
class DeviceRow:
    """Devices that do the same all the time, and what they mostly do in each column of the time axis."""

    first: int
    last: int
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The devices, such as ``0-3``."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def device_rows(case: Case, plan: Plan, columns: int) -> list[DeviceRow]:
    """Return what every device does, from 0 to the end of the iteration in ``columns`` equal parts of it.

    Devices that no phase uses are idle. The plan must be valid.
    """
    done = list(spans(case, plan))
    whole = max((span.end for span in done), default=0)
    borders = {0, case.devices}
    for phase in plan.phases:
        borders |= {first_device(phase, s) for s in range(len(phase.stages) + 1)}
    found = []
    cuts = sorted(borders)
    for first, end in zip(cuts, cuts[1:], strict=False):
        mine = [span for span in done if span.first_device <= first < span.first_device + span.devices]
        found.append(DeviceRow(first, end - 1, tuple(_cells(mine, whole, columns))))
    return found


def chart_lines(case: Case, plan: Plan, columns: int = 64) -> list[str]:
    """Return the bars as lines of text: a letter for each component, ``+`` while it loads, ``-`` while it unloads."""
    letters = letters_of([component.name for component in case.components])
    rows = device_rows(case, plan, columns)
    width = max(len(row.label) for row in rows)
    lines = [f"{row.label:>{width}} {''.join(glyph(cell, letters) for cell in row.cells)}" for row in rows]
    legend = "  ".join(f"{letters[component.name]} {component.name}" for component in case.components)
    marks = "  + loading  - unloading" if plan.swapped else ""
    return [*lines, f"{'':{width}} {legend}{marks}  . idle"]


def glyph(cell: Cell, letters: dict[str, str]) -> str:
    """Return the character for a cell."""
    component, work = cell
    return {"idle": ".", "onload": "+", "offload": "-"}.get(work) or letters[component]


def letters_of(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each component, its own first one where no other took it."""
    taken: dict[str, str] = {}
    for name in names:
        wanted = (*name.lower(), *name.upper(), *ascii_lowercase)
        free = [letter for letter in wanted if letter.isalnum() and letter not in taken.values()]
        taken[name] = free[0] if free else "?"
    return taken


def color_of(case: Case, component: str) -> str:
    """Return the colour of a component, the same in every chart of the case."""
    return _COLORS[case.index[component] % len(_COLORS)]


def chart_svg(case: Case, plan: Plan, title: str = "Plan", columns: int = 360) -> str:
    """Return the bars as an SVG document that fits light and dark pages."""
    rows = device_rows(case, plan, columns)
    height = _TOP + _ROW * len(rows) + 34
    unit = _WIDTH / columns
    parts = []
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">device {escape(row.label)}</text>')
        for cell, start, length in _merged(row.cells):
            parts.append(_bar(case, cell, _LEFT + start * unit, y, length * unit))
    x = float(_LEFT)
    for component in case.components:
        y = height - 20
        parts.append(f'<rect x="{x:.0f}" y="{y}" width="10" height="10" fill="{color_of(case, component.name)}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="{y + 10}">{escape(component.name)}</text>')
        x += 30 + 7 * len(component.name)
    style = "text{font:11px sans-serif;fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 8} {height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>{style}</style>{"".join(parts)}</svg>\n'
    )


def _bar(case: Case, cell: Cell, x: float, y: int, width: float) -> str:
    component, work = cell
    if work == "idle":
        return ""
    opacity = 1 if work == "compute" else 0.4
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" fill="{color_of(case, component)}" '
        f'fill-opacity="{opacity}"><title>{escape(component)}: {work}</title></rect>'
    )


def _merged(cells: Iterable[Cell]) -> list[tuple[Cell, int, int]]:
    found = []
    start = 0
    for cell, run in groupby(cells):
        length = len(list(run))
        found.append((cell, start, length))
        start += length
    return found


def _cells(mine: list[Span], whole: int, columns: int) -> list[Cell]:
    """Return for each column what takes most of it; it is idle where more than half of it is."""
    shares: list[dict[Cell, int]] = [{} for _ in range(columns)]
    for span in mine:
        column = span.start * columns // whole if whole else 0
        while column < columns and column * whole < span.end * columns:
            begin, end = max(span.start * columns, column * whole), min(span.end * columns, (column + 1) * whole)
            cell = (span.component, span.work)
            shares[column][cell] = shares[column].get(cell, 0) + end - begin
            column += 1
    return [
        max(share, key=share.__getitem__) if share and 2 * sum(share.values()) >= whole else IDLE for share in shares
    ]
