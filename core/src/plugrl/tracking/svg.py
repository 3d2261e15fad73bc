"""Line charts as inline SVG, coloured by the style sheet of the page, so that they fit light and dark."""

from __future__ import annotations

import math
from html import escape

from plugrl.tracking.series import Line, Panel, Points

_WIDTH, _HEIGHT = 380, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 26
_FEW = 20


def chart(panel: Panel) -> str:
    """Return one panel as an `<svg>` element; every value is within the frame."""
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points]
    x_range = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, max(xs) + 1)
    ticks = _ticks(*_y_range(ys, panel.percent), 4)
    y_range = (ticks[0], ticks[-1])
    parts = [_grid(ticks, y_range, panel.percent), _x_axis(x_range)]
    parts += [_line(line, number % 4, x_range, y_range) for number, line in enumerate(panel.lines)]
    title = escape(panel.title)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>'
        + "".join(parts)
        + "</svg>"
    )


def legend(panel: Panel) -> str:
    """Return the labels of the lines, nothing where there is only one."""
    if len(panel.lines) < 2:
        return ""
    items = (f'<span class="key k{i % 4}">{escape(line.label)}</span>' for i, line in enumerate(panel.lines))
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


def _x(value: float, x_range: tuple[float, float]) -> float:
    return _LEFT + (value - x_range[0]) / (x_range[1] - x_range[0]) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, y_range: tuple[float, float]) -> float:
    return _HEIGHT - _BOTTOM - (value - y_range[0]) / (y_range[1] - y_range[0]) * (_HEIGHT - _TOP - _BOTTOM)


def _grid(ticks: list[float], y_range: tuple[float, float], percent: bool) -> str:
    parts = []
    for tick in ticks:
        y = _y(tick, y_range)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">')
        parts.append(f"{escape(format_value(tick, percent))}</text>")
    return "".join(parts)


def _x_axis(x_range: tuple[float, float]) -> str:
    parts = []
    ticks = [tick for tick in _ticks(*x_range, 5) if x_range[0] <= tick <= x_range[1] and tick == int(tick)]
    for tick in ticks:
        x = _x(tick, x_range)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{tick:,.0f}</text>')
    return "".join(parts)


def _line(line: Line, color: int, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    """Return the raw line faint and the smoothed one over it; few points are marked, with their values as tooltips."""
    parts = []
    if line.smooth != line.points:
        parts.append(f'<polyline class="raw c{color}" points="{_points(line.points, x_range, y_range)}"/>')
    parts.append(f'<polyline class="smooth c{color}" points="{_points(line.smooth, x_range, y_range)}"/>')
    if len(line.points) <= _FEW:
        for x, y in line.points:
            parts.append(f'<circle class="c{color}" cx="{_x(x, x_range):.1f}" cy="{_y(y, y_range):.1f}" r="3">')
            parts.append(f"<title>step {x:,.0f}: {escape(format_value(y))}</title></circle>")
    return "".join(parts)


def _points(points: Points, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    return " ".join(f"{_x(x, x_range):.1f},{_y(y, y_range):.1f}" for x, y in points)
