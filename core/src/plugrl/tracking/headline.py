"""The few numbers of a step that a person looks at."""

from __future__ import annotations

import re
from collections.abc import Mapping

_ACCURACY = re.compile(r"^val-core/.*/(acc|accuracy)/mean@\d+$|^(val|sft|eval)/(acc|accuracy)$")
_VALIDATION_REWARD = re.compile(r"^val-core/.*/(reward|score)/mean@\d+$")
_SHOWN: tuple[tuple[str, str, str], ...] = (
    ("loss", r"^sft/loss$|^train/loss$", "{:.3f}"),
    ("reward", r"^critic/rewards/mean$", "{:.3f}"),
    ("success", r"^env/success_once$", "{:.1%}"),
    ("return", r"^env/return$", "{:.3f}"),
    ("held-out success", r"^eval/success_once$", "{:.1%}"),
    ("accuracy", _ACCURACY.pattern, "{:.1%}"),
    ("held-out reward", _VALIDATION_REWARD.pattern, "{:.3f}"),
    ("length", r"^response_length/mean$", "{:.1f}"),
    ("entropy", r"^actor/entropy$", "{:.3f}"),
    ("tokens/s", r"^perf/throughput$", "{:,.0f}"),
    ("actions/s", r"^perf/env_steps_per_s$", "{:,.0f}"),
    ("", r"^timing_s/step$", "{:.1f} s"),
)
"""Label, metric, format."""


def headline(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return label and text of the numbers to show; the first four metrics where none of the known ones is there."""
    shown = []
    for label, pattern, form in _SHOWN:
        key = next((key for key in metrics if re.search(pattern, key)), None)
        if key is not None:
            shown.append((label or "time", form.format(metrics[key])))
    return shown or [(key, f"{value:.4g}") for key, value in list(metrics.items())[:4]]


def accuracy_of(metrics: Mapping[str, float]) -> float | None:
    """Return the held-out accuracy among the metrics of a step, else the held-out reward, None if there is neither."""
    for pattern in (_ACCURACY, _VALIDATION_REWARD):
        values = [value for key, value in metrics.items() if pattern.search(key) and value is not None]
        if values:
            return sum(values) / len(values)
    return None


def duration(seconds: float) -> str:
    """Return a time span as `45 s`, `3 min 20 s` or `2 h 05 min`."""
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
