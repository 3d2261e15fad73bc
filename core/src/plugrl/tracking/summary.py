"""The figures of a run in a few numbers: before and after, speed, where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.tracking.headline import accuracy_of, duration
from plugrl.tracking.series import mean, points_of
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
    found = [_accuracy(rows), _change(rows, "critic/rewards/mean", "Reward"), _steps(rows)]
    found += [_speed(rows), _change(rows, "response_length/mean", "Response length", "tokens")]
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
    parts = [(_NAMES[name], spent) for name, spent in sorted(sums.items(), key=lambda item: -item[1])]
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


def _change(rows: Sequence[dict[str, Any]], key: str, label: str, unit: str = "") -> Tile | None:
    points = points_of(rows, key)
    if not points:
        return None
    window = max(1, len(points) // 10)
    first = mean([value for _, value in points[:window]]) or 0.0
    last = mean([value for _, value in points[-window:]]) or 0.0
    return Tile(label, format_value(last), unit, f"from {format_value(first)}" if len(points) > 1 else "")


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
    values = [value for _, value in points_of(rows, "perf/throughput")]
    average = mean(values)
    if average is None:
        return None
    steps = mean([value for _, value in points_of(rows, "timing_s/step")])
    return Tile("Throughput", format_value(average), "tokens/s", f"{steps:.1f} s a step" if steps else "")
