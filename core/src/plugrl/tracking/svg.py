"""Line charts as inline SVG, coloured by the style sheet of the page, so that they fit light and dark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from plugrl.tracking.series import Line, Panel, Points

SMALL, WIDE = (380, 210), (1120, 380)
"""Width and height of a chart, in the unit in which its text has 11."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26
_FEW = 20


@dataclass(frozen=True)
class _Frame:
    """Where values lie in the picture."""

    width: int
    height: int
    xs: tuple[float, float]
    ys: tuple[float, float]

    def x(self, value: float) -> float:
        """The horizontal place of a step."""
        return _LEFT + (value - self.xs[0]) / (self.xs[1] - self.xs[0]) * (self.width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """The vertical place of a value."""
        inner = self.height - _TOP - _BOTTOM
        return self.height - _BOTTOM - (value - self.ys[0]) / (self.ys[1] - self.ys[0]) * inner

    def points(self, points: Points) -> str:
        """The places of points, for a polyline."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def chart(panel: Panel, size: tuple[int, int] = SMALL) -> str:
    """Return one panel as an `<svg>` element; every value is within the frame."""
    curves = [line.points for line in panel.lines]
    if panel.band is not None:
        curves += [panel.band.low, panel.band.high]
    xs = [x for points in curves for x, _ in points]
    ys = [y for points in curves for _, y in points]
    ticks = _ticks(*_y_range(ys, panel.percent), 4)
    x_range = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, max(xs) + 1)
    frame = _Frame(*size, x_range, (ticks[0], ticks[-1]))
    parts = [_grid(ticks, frame, panel.percent), _x_axis(frame)]
    if panel.band is not None:
        outline = frame.points([*panel.band.low, *reversed(panel.band.high)])
        parts.append(f'<polygon class="band f1" points="{outline}"/>')
    parts += [_line(line, number % 4, frame) for number, line in enumerate(panel.lines)]
    title = escape(panel.title)
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{title}"><title>{title}</title>'
        + "".join(parts)
        + "</svg>"
    )


def legend(panel: Panel) -> str:
    """Return the labels of the lines and the band, nothing where there is only one line."""
    if len(panel.lines) < 2:
        return ""
    items = [f'<span class="key k{i % 4}">{escape(line.label)}</span>' for i, line in enumerate(panel.lines)]
    if panel.band is not None:
        items.append(f'<span class="key k1 faint">{escape(panel.band.label)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def format_value(value: float, percent: bool = False) -> str:
    """Return a number for a person: few digits, thousands apart."""
    if percent:
        return f"{value * 100:.3g}%"
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.1e}"


def _y_range(ys: list[float], percent: bool) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    if percent and high > 0.2:
        return 0.0, max(1.0, high)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if low == high == 0:
        return 0.0, 0.1
    if low == high:
        low, high = low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1
    return low, high


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return round numbers that enclose the range."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _grid(ticks: list[float], frame: _Frame, percent: bool) -> str:
    parts = []
    for tick in ticks:
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{frame.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">')
        parts.append(f"{escape(format_value(tick, percent))}</text>")
    return "".join(parts)


def _x_axis(frame: _Frame) -> str:
    parts = []
    low, high = frame.xs
    for tick in [tick for tick in _ticks(low, high, 5) if low <= tick <= high and tick == int(tick)]:
        x, y = frame.x(tick), frame.height - 8
        parts.append(f'<text class="tick" x="{x:.1f}" y="{y}" text-anchor="middle">{tick:,.0f}</text>')
    return "".join(parts)


def _line(line: Line, color: int, frame: _Frame) -> str:
    """Return the raw line faint and the smoothed one over it; few points are marked, with their values as tooltips."""
    parts = []
    if line.smooth != line.points:
        parts.append(f'<polyline class="raw c{color}" points="{frame.points(line.points)}"/>')
    parts.append(f'<polyline class="smooth c{color}" points="{frame.points(line.smooth)}"/>')
    if len(line.points) <= _FEW:
        for x, y in line.points:
            parts.append(f'<circle class="c{color}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3">')
            parts.append(f"<title>step {x:,.0f}: {escape(format_value(y))}</title></circle>")
    return "".join(parts)
