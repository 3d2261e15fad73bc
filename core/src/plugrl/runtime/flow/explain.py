"""What a resolved flow means: what runs where, in which portions, beside what, and what keeps it from more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plugrl.runtime.flow.arrange import Arrangement
from plugrl.runtime.flow.stages import Stage

COLUMNS = ("phase", "stage", "component", "devices", "portions", "overlaps with", "waits")


@dataclass(frozen=True)
class FlowTable:
    """The resolved flow as rows of text under :data:`COLUMNS`, and sentences below them."""

    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def explain(arrangement: Arrangement, unit: str = "items") -> FlowTable:
    """Return the table of an arrangement; ``unit`` is what its items are called."""
    rows = [
        (
            str(arrangement.phase_of(stage)),
            stage.name,
            stage.component,
            _ranges(stage.devices) or "-",
            _portions(stage, arrangement.total),
            ", ".join(_beside(stage, arrangement)) or "-",
            _waits(stage, arrangement),
        )
        for stage in arrangement.work
    ]
    return FlowTable(tuple(rows), tuple(_notes(arrangement, unit)))


def _portions(stage: Stage, total: int) -> str:
    size = min(stage.size, total)
    return f"{-(-total // size)} x {size}"


def _beside(stage: Stage, arrangement: Arrangement) -> Iterator[str]:
    """Yield the stages that may run while this one does: on other devices, in its phase, without having to wait.

    Stages of which one needs the other overlap when there is more than one portion of both.
    """
    needed = _needed(stage, arrangement)
    for other in arrangement.work:
        if other is stage or other.phase != stage.phase or other.component == stage.component:
            continue
        if set(other.devices) & set(stage.devices):
            continue
        related = other.name in needed or stage.name in _needed(other, arrangement)
        if not related or _streams(stage, other, arrangement):
            yield other.name


def _streams(stage: Stage, other: Stage, arrangement: Arrangement) -> bool:
    """Whether neither of two stages in a chain, nor one between them, waits for all items."""
    first, last = (other, stage) if other.name in _needed(stage, arrangement) else (stage, other)
    between = [
        one for one in arrangement.work
        if one is last or (one.name in _needed(last, arrangement) and first.name in _needed(one, arrangement))
    ]  # fmt: skip
    return all(min(one.size, arrangement.total) < arrangement.total for one in [first, *between])


def _needed(stage: Stage, arrangement: Arrangement) -> set[str]:
    """Return all stages that one depends on, directly or not."""
    by_name = {one.name: one for one in arrangement.work}
    found: set[str] = set()
    pending = list(stage.after)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += by_name[name].after
    return found


def _waits(stage: Stage, arrangement: Arrangement) -> str:
    if stage.why and stage.size >= arrangement.total:
        return "for all"
    sharing = [
        other.component for other in arrangement.work
        if other.component != stage.component and set(other.devices) & set(stage.devices)
    ]  # fmt: skip
    if sharing:
        return f"turn with {', '.join(dict.fromkeys(sharing))}"
    return "inputs" if stage.after else "-"


def _notes(arrangement: Arrangement, unit: str) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for stage in arrangement.work:
        if stage.why and stage.size >= arrangement.total:
            reasons.setdefault(stage.why, []).append(stage.name)
    for why, names in reasons.items():
        yield f"Waiting for all {unit}: {', '.join(names)}, because {why}."
    if all(stage.size >= arrangement.total for stage in arrangement.work):
        yield (
            f"Every stage takes all {arrangement.total} {unit} at once; with a smaller flow.chunk, stages on their own "
            "devices overlap."
        )
    if arrangement.swapped:
        yield f"Off-loaded outside their phases: {', '.join(arrangement.swapped)}."


def _ranges(devices: Sequence[int]) -> str:
    """Return devices as the placement writes them: 0-3,5."""
    parts: list[list[int]] = []
    for device in sorted(devices):
        if parts and device == parts[-1][1] + 1:
            parts[-1][1] = device
        else:
            parts.append([device, device])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
