"""Sample generations of a run, the first beside the last for the same prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One prompt with its answer and what the policy wrote at the first and at the last recorded step."""

    prompt: str
    answer: str
    before: dict[str, Any] | None
    after: dict[str, Any]


def compare(rows: Iterable[dict[str, Any]], limit: int = 8) -> list[Comparison]:
    """Return comparisons for up to ``limit`` prompts, those whose reward changed most first.

    A run of several phases is judged by its reinforcement learning, and by held-out prompts where there are any.
    """
    rows = [row for row in rows if "response" in row]
    rows = [row for row in rows if row.get("split") != "train"] or rows
    main = [row for row in rows if row.get("phase", "rl") == "rl"]
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for row in main or rows:
        by_prompt.setdefault(as_text(row.get("prompt", "")), []).append(row)
    found = [_comparison(prompt, versions) for prompt, versions in by_prompt.items()]
    changed = sorted((item for item in found if item.before is not None), key=lambda item: -_gain(item))
    seen_once = [item for item in found if item.before is None]
    return [*_mix(changed, limit), *seen_once][:limit]


def _comparison(prompt: str, versions: list[dict[str, Any]]) -> Comparison:
    moments = sorted(versions, key=lambda row: int(row.get("step", 0)))
    first, last = moments[0], moments[-1]
    before = first if first.get("step") != last.get("step") else None
    return Comparison(prompt, as_text(last.get("ground_truth", last.get("answer", ""))), before, last)


def as_text(value: Any) -> str:
    """Return a prompt or an answer as text; chat messages one below the other."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return "\n".join(f"{item.get('role', '')}: {item.get('content', '')}" for item in value)
    return "" if value is None else str(value)


def reward_of(row: dict[str, Any]) -> float | None:
    """Return the reward of a sample, None if it has none."""
    value = row.get("reward", row.get("score"))
    return float(value) if isinstance(value, int | float) else None


def _gain(item: Comparison) -> float:
    if item.before is None:
        return 0.0
    before, after = reward_of(item.before), reward_of(item.after)
    return 0.0 if before is None or after is None else after - before


def _mix(found: list[Comparison], limit: int) -> list[Comparison]:
    """Choose from both ends of the order, so that what got worse is shown beside what got better."""
    if len(found) <= limit:
        return found
    worst = [item for item in found[-2:] if _gain(item) < 0]
    return found[: limit - len(worst)] + worst
