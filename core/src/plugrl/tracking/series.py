"""Metrics of a run as series, smoothed, and the panels in which they are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Points = list[tuple[float, float]]
"""(step, value) pairs in order of steps."""


@dataclass(frozen=True)
class Line:
    """One curve: its label, its points and a smoothed copy (the points themselves where there are few)."""

    label: str
    points: Points
    smooth: Points


@dataclass(frozen=True)
class Band:
    """The area between a lower and an upper curve over the same steps."""

    label: str
    low: Points
    high: Points


@dataclass(frozen=True)
class Panel:
    """One chart: lines, each in its colour, and a band behind them in the colour of the second one."""

    title: str
    lines: list[Line] = field(default_factory=list)
    percent: bool = False
    band: Band | None = None


@dataclass(frozen=True)
class _Spec:
    title: str
    patterns: tuple[tuple[str, str], ...]
    phase: str = "rl"
    percent: bool = False
    skip_constant: bool = False
    """Leave the panel out where the value never changes."""
    band: tuple[str, str] | None = None
    """Metrics of the lower and the upper end of an interval around the second curve."""


_SPECS = (
    _Spec(
        "Success (share of episodes)",
        (("training", r"env/success_once"), ("held out", r"eval/success_once")),
        percent=True,
        band=("eval/success_once_low", "eval/success_once_high"),
    ),
    _Spec("Return of an episode", (("training", r"env/return"), ("held out", r"eval/return"))),
    _Spec("Reward", (("mean", r"critic/rewards/mean"),)),
    _Spec("Held-out accuracy", (("", r"val-core/(.+)/(?:acc|accuracy)/mean@\d+"),), percent=True),
    _Spec(
        "Readable answers",
        (("training", r"reward/parsed/mean"), ("held out", r"val-(?:core|aux)/.+/parsed/mean@\d+")),
        percent=True,
        skip_constant=True,
    ),
    _Spec("Held-out reward", (("", r"val-core/(.+)/(?:reward|score)/mean@\d+"),)),
    _Spec("Response length (tokens)", (("mean", r"response_length/mean"),)),
    _Spec("Entropy", (("entropy", r"actor/entropy"),)),
    _Spec(
        "Divergence",
        (
            ("from the old policy", r"actor/ppo_kl"),
            ("from the reference, in the loss", r"actor/kl_loss"),
            ("from the reference, in the reward", r"actor/reward_kl_penalty"),
        ),
    ),
    _Spec("Gradient norm", (("actor", r"actor/grad_norm"), ("critic", r"critic/grad_norm"))),
    _Spec("Share of clipped ratios", (("clipped", r"actor/pg_clipfrac"),), percent=True),
    _Spec("Value model", (("loss", r"critic/vf_loss"), ("explained variance", r"critic/vf_explained_var"))),
    _Spec("Throughput (tokens/s)", (("all devices", r"perf/throughput"),)),
    _Spec("Actions a second", (("all scenes", r"perf/env_steps_per_s"),)),
    _Spec("Supervised loss", (("loss", r"(?:sft|train)/loss"),), phase="sft"),
    _Spec("Accuracy in the supervised phase", (("", r"val-core/(.+)/(?:acc|accuracy)/mean@\d+"),), "sft", True),
)


def make_panels(rows: Iterable[dict[str, Any]]) -> list[Panel]:
    """Return the panels for which the run has numbers."""
    rows = list(rows)
    panels = []
    for spec in _SPECS:
        lines = [line for label, pattern in spec.patterns for line in _lines(rows, spec.phase, label, pattern)]
        values = {value for line in lines for _, value in line.points}
        if lines and not (spec.skip_constant and len(values) == 1):
            panels.append(Panel(spec.title, lines, spec.percent, _band(rows, spec) if len(lines) == 2 else None))
    return panels


def _band(rows: list[dict[str, Any]], spec: _Spec) -> Band | None:
    if spec.band is None:
        return None
    low, high = (points_of(rows, key, spec.phase) for key in spec.band)
    return Band("95 % interval", low, high) if low and len(low) == len(high) else None


def points_of(rows: Iterable[dict[str, Any]], key: str, phase: str = "rl") -> Points:
    """Return one metric by step; the last value where a step has several."""
    found: dict[float, float] = {}
    for row in rows:
        value = row.get(key)
        if row.get("phase", "rl") == phase and isinstance(value, int | float) and not isinstance(value, bool):
            found[float(row["step"])] = float(value)
    return sorted(found.items())


def smooth(points: Points, span: int | None = None) -> Points:
    """Return a moving line fit over ``span`` points, by default a tenth of them; few points stay as they are.

    A line, not a mean: so the ends, where the window has only one side, are not pulled towards the middle.
    """
    width = span or max(1, len(points) // 10)
    if width < 3:
        return list(points)
    half = width // 2
    windows = ((step, points[max(0, i - half) : i + half + 1]) for i, (step, _) in enumerate(points))
    return [(step, _fit(window, step)) for step, window in windows]


def _fit(window: Points, at: float) -> float:
    """Return the value at ``at`` of the least-squares line through the points."""
    x_mean = sum(x for x, _ in window) / len(window)
    y_mean = sum(y for _, y in window) / len(window)
    spread = sum((x - x_mean) ** 2 for x, _ in window)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in window) / spread if spread else 0.0
    return y_mean + slope * (at - x_mean)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None of nothing."""
    return sum(values) / len(values) if values else None


def _lines(rows: list[dict[str, Any]], phase: str, label: str, pattern: str) -> list[Line]:
    keys = dict.fromkeys(key for row in rows if row.get("phase", "rl") == phase for key in row)
    lines = []
    for key in keys:
        match = re.fullmatch(pattern, key)
        points = points_of(rows, key, phase) if match else []
        if match and points:
            lines.append(Line(label or match[1], points, smooth(points)))
    return lines
