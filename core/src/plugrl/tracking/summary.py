"""The figures of a run in a few numbers: before and after, speed, where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.tracking.headline import accuracy_of, duration
from plugrl.tracking.series import Points, mean, points_of
from plugrl.tracking.svg import format_value


@dataclass(frozen=True)
class Tile:
    """One headline number: what it is, its value with a unit, and a remark below; ``tone`` is good, bad or neither."""

    label: str
    value: str
    unit: str = ""
    note: str = ""
    tone: Literal["", "good", "bad"] = ""


@dataclass(frozen=True)
class TimeShare:
    """A part of a step: seconds in the mean, and its share of the step."""

    name: str
    seconds: float
    share: float


_NAMES = {
    "gen": "generate",
    "reward": "reward",
    "old_log_prob": "old log-probabilities",
    "ref": "reference",
    "values": "values",
    "adv": "advantages",
    "update_critic": "update critic",
    "update_actor": "update actor",
    "update_weights": "send weights",
    "testing": "validate",
    "save_checkpoint": "save",
}


def accuracies(rows: Sequence[dict[str, Any]], phase: str = "rl") -> list[tuple[int, float]]:
    """Return (step, held-out accuracy) of every validation of a phase."""
    found = []
    for row in rows:
        value = accuracy_of({k: v for k, v in row.items() if isinstance(v, int | float)})
        if value is not None and row.get("phase", "rl") == phase:
            found.append((int(row["step"]), value))
    return found


def tiles(rows: Sequence[dict[str, Any]]) -> list[Tile]:
    """Return the headline numbers for which the run has metrics."""
    found = [_accuracy(rows), _success(rows), _change(rows, "critic/rewards/mean", "Reward")]
    found += [_change(rows, "env/return", "Return"), _steps(rows), _speed(rows)]
    found.append(_change(rows, "response_length/mean", "Response length", "tokens"))
    return [tile for tile in found if tile is not None]


def time_shares(rows: Sequence[dict[str, Any]], phase: str = "rl") -> list[TimeShare]:
    """Return where the time of a mean step went, the largest part first; what no timer covers is `other`."""
    timed = [row for row in rows if row.get("phase", "rl") == phase and row.get("timing_s/step")]
    if not timed:
        return []
    total = sum(float(row["timing_s/step"]) for row in timed)
    sums: dict[str, float] = {}
    for row in timed:
        for key, value in row.items():
            name = key.removeprefix("timing_s/")
            if key.startswith("timing_s/") and name in _NAMES and value:
                sums[name] = sums.get(name, 0.0) + float(value)
    rest = total - sum(sums.values())
    acts = any("timing_s/env/simulate" in row for row in timed)
    names = {**_NAMES, "gen": "act in environments"} if acts else _NAMES
    parts = [(names[name], spent) for name, spent in sorted(sums.items(), key=lambda item: -item[1])]
    if rest > 0.005 * total:
        parts.append(("other", rest))
    whole = max(total, sum(sums.values()))
    return [TimeShare(name, spent / len(timed), spent / whole) for name, spent in parts]


def _accuracy(rows: Sequence[dict[str, Any]]) -> Tile | None:
    values = accuracies(rows) or accuracies(rows, "sft")
    if not values:
        return None
    (first_step, first), (last_step, last) = values[0], values[-1]
    best_step, best = max(values, key=lambda item: item[1])
    note = f"from {first:.1%} at step {first_step}" if len(values) > 1 else f"at step {last_step}"
    if best > last:
        note += f"; best {best:.1%} at step {best_step}"
    return Tile("Held-out accuracy", f"{last:.1%}", note=note)


def _success(rows: Sequence[dict[str, Any]]) -> Tile | None:
    """The share of solved episodes: held out, with its interval, where it was measured, else of training."""
    points = points_of(rows, "eval/success_once")
    if not points:
        ends = _ends(points_of(rows, "env/success_once"))
        return None if ends is None else Tile("Success in training", f"{ends[1]:.1%}", note=f"from {ends[0]:.1%}")
    (first_step, first), (_, last) = points[0], points[-1]
    low, high = (points_of(rows, f"eval/success_once_{end}") for end in ("low", "high"))
    interval = f"{low[-1][1]:.1%} to {high[-1][1]:.1%}" if low and high else ""
    change = f"from {first:.1%} at step {first_step:.0f}" if len(points) > 1 else ""
    return Tile("Held-out success", f"{last:.1%}", note="; ".join(part for part in (change, interval) if part))


def _change(rows: Sequence[dict[str, Any]], key: str, label: str, unit: str = "") -> Tile | None:
    points = points_of(rows, key)
    ends = _ends(points)
    if ends is None:
        return None
    return Tile(label, format_value(ends[1]), unit, f"from {format_value(ends[0])}" if len(points) > 1 else "")


def _ends(points: Points) -> tuple[float, float] | None:
    """Return the means over the first and the last tenth of a curve."""
    if not points:
        return None
    window = max(1, len(points) // 10)
    return sum(value for _, value in points[:window]) / window, sum(value for _, value in points[-window:]) / window


def _steps(rows: Sequence[dict[str, Any]]) -> Tile | None:
    if not rows:
        return None
    phases = dict.fromkeys(row.get("phase", "rl") for row in rows)
    last = {phase: max(int(row["step"]) for row in rows if row.get("phase", "rl") == phase) for phase in phases}
    main = "rl" if "rl" in last else next(iter(last))
    # Pauses between an interrupted run and its continuation are not counted: no step lasts longer than its timer says.
    spent = sum(float(row.get("timing_s/step") or 0) for row in rows)
    times = [float(row["time"]) for row in rows if "time" in row]
    wall = max(times) - min(times) if times else 0.0
    note = f"in {duration(spent or wall)}"
    note += f", after {last['sft']} supervised steps" if main == "rl" and "sft" in last else ""
    return Tile("Steps", f"{last[main]:,}", note=note)


def _speed(rows: Sequence[dict[str, Any]]) -> Tile | None:
    steps = mean([value for _, value in points_of(rows, "timing_s/step")])
    for key, unit in (("perf/throughput", "tokens/s"), ("perf/env_steps_per_s", "actions/s")):
        average = mean([value for _, value in points_of(rows, key)])
        if average is not None:
            return Tile("Throughput", format_value(average), unit, f"{steps:.1f} s a step" if steps else "")
    return None
