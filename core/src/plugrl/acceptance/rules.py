"""The rules of the hardware acceptance, on the mean reward of each training step.

They are those of the guide for hardware plugins (a clear upward trend within 20 steps, no collapse within 100, shape
and size like the reference's, the run goes through), as statistics with thresholds. docs/acceptance.md says how the
thresholds were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import Field

from plugrl.acceptance.curves import correlation, largest_fall, mean, rise, rms_difference, rolling_mean, slope_t
from plugrl.acceptance.record import RunRecord
from plugrl.config.schema.base import Section


class Thresholds(Section):
    """What the rules compare with. Rewards are meant in the reward's own unit; the defaults fit rewards from 0 to 1."""

    window: int = Field(5, ge=2)
    """Steps of the rolling mean, and of the means at either end of a rise."""

    horizon: int = Field(100, ge=3)
    """Steps that are judged, from the first on; all of a shorter run."""

    trend_steps: int = Field(20, ge=3)
    """Steps within which the reward must be seen to rise."""

    min_slope_t: float = 2.0
    """Least slope over those steps, in standard errors."""

    min_rise: float = 0.02
    """Least rise over those steps: mean of the last `window` minus mean of the first."""

    max_drop: float = Field(0.05, ge=0)
    """Most by which the rolling mean may lie below its value at step `trend_steps` afterwards."""

    max_fall: float = Field(0.12, ge=0)
    """Most by which the rolling mean may lie below any earlier value of its own."""

    max_distance: float = Field(0.10, ge=0)
    """Most by which the rolling mean may differ from the reference's: root of the mean squared difference."""

    min_correlation: float = Field(0.7, ge=-1, le=1)
    """Least correlation of the rolling mean with the reference's."""

    min_gain: float = 0.5
    """Least rise over all steps, as a share of the reference's."""

    max_skipped_steps: int = Field(0, ge=0)
    """Most optimizer steps that may be skipped because the gradient was not finite."""


@dataclass(frozen=True)
class RuleResult:
    """One rule's answer: what was measured, with what it was compared, and whether that is enough.

    ``measured`` is None where the run is too short to say. ``note`` says more where there is more to say.
    """

    name: str
    text: str
    measured: float | None
    relation: Literal[">=", "<="]
    threshold: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the rule holds; one that could not be judged does not."""
        if self.measured is None or math.isnan(self.measured):
            return False
        return self.measured >= self.threshold if self.relation == ">=" else self.measured <= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no infinity."""
        finite = self.measured is None or math.isfinite(self.measured)
        return {**asdict(self), "measured": self.measured if finite else None, "passed": self.passed}


def judge(record: RunRecord, reference: Sequence[float], planned: int, thresholds: Thresholds) -> list[RuleResult]:
    """Return the answer of every rule, in order.

    reference: the mean reward of each step of the curve that is trusted. planned: steps that the run was to have.
    """
    return [
        _complete(record, planned),
        *_finite(record, thresholds),
        *_trend(record.rewards[: thresholds.horizon], thresholds),
        *_no_collapse(record.rewards[: thresholds.horizon], thresholds),
        *_consistency(record.rewards[: thresholds.horizon], reference[: thresholds.horizon], planned, thresholds),
    ]


def _complete(record: RunRecord, planned: int) -> RuleResult:
    note = f"the run ended with {record.error}" if record.error else ""
    return RuleResult("complete", "Steps done", record.last_step, ">=", planned, note)


def _finite(record: RunRecord, thresholds: Thresholds) -> Iterator[RuleResult]:
    found = record.not_finite
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    note = f"{found[0]}{more}" if found else ""
    yield RuleResult("finite", "Rewards, losses and norms missing or not finite", len(found), "<=", 0, note)
    limit = thresholds.max_skipped_steps
    yield RuleResult("no_skipped_steps", "Optimizer steps skipped", record.skipped_steps, "<=", limit)


def _trend(rewards: Sequence[float], thresholds: Thresholds) -> Iterator[RuleResult]:
    steps, window = thresholds.trend_steps, thresholds.window
    start = rewards[:steps]
    enough = len(start) == steps
    note = "" if enough else _too_short(steps, rewards)
    slope = slope_t(start) if enough else None
    risen = rise(start, window) if enough else None
    text = f"Slope over steps 1-{steps}, in standard errors"
    yield RuleResult("trend", text, slope, ">=", thresholds.min_slope_t, note)
    text = f"Mean of steps {steps - window + 1}-{steps} less that of 1-{window}"
    yield RuleResult("rise", text, risen, ">=", thresholds.min_rise, note)


def _no_collapse(rewards: Sequence[float], thresholds: Thresholds) -> Iterator[RuleResult]:
    steps, window = thresholds.trend_steps, thresholds.window
    smooth = rolling_mean(rewards, window)
    later = smooth[steps - window :]
    drop = max(0.0, later[0] - min(later)) if later else None
    note = "" if later else _too_short(steps, rewards)
    text = f"Rolling mean below its value at step {steps}, at most"
    yield RuleResult("no_drop", text, drop, "<=", thresholds.max_drop, note)
    fall = largest_fall(smooth) if smooth else None
    text = "Rolling mean below its own maximum so far, at most"
    note = "" if smooth else _too_short(window, rewards)
    yield RuleResult("no_collapse", text, fall, "<=", thresholds.max_fall, note)


def _consistency(
    rewards: Sequence[float], reference: Sequence[float], planned: int, thresholds: Thresholds
) -> Iterator[RuleResult]:
    window = thresholds.window
    wanted = min(planned, thresholds.horizon, len(reference))
    count = min(len(rewards), len(reference))
    note = "" if count >= wanted else f"over the {count} steps that there are"
    ours, theirs = rolling_mean(rewards[:count], window), rolling_mean(reference[:count], window)
    distance = alike = gain = None
    if len(ours) > 1:
        distance, alike = rms_difference(ours, theirs), correlation(ours, theirs)
        gain = _gain(rewards[:count], reference[:count], window)
    else:
        note = _too_short(window + 1, rewards)
    text = "Rolling mean from the reference's, root mean square"
    yield RuleResult("distance", text, distance, "<=", thresholds.max_distance, note)
    text = "Rolling mean with the reference's, correlation"
    yield RuleResult("shape", text, alike, ">=", thresholds.min_correlation, note)
    text = "Rise over all steps, as a share of the reference's"
    yield RuleResult("gain", text, gain, ">=", thresholds.min_gain, note)


def _gain(rewards: Sequence[float], reference: Sequence[float], window: int) -> float:
    """Return the rise of a curve as a share of the reference's; the end is the mean of the last tenth."""
    last = max(window, len(reference) // 10)
    expected = rise(reference, window, last)
    return rise(rewards, window, last) / expected if expected > 0 else math.nan


def _too_short(needed: int, rewards: Sequence[float]) -> str:
    return f"needs {needed} steps, there are {len(rewards)}"


def spread(curves: Sequence[Sequence[float]], window: int) -> float | None:
    """Return the mean distance of each curve from the mean of the others: what another seed alone makes of it.

    None with fewer than two curves, or curves shorter than the window.
    """
    if len(curves) < 2:
        return None
    count = min(len(curve) for curve in curves)
    smooth = [rolling_mean(curve[:count], window) for curve in curves]
    if not smooth[0]:
        return None
    distances = []
    for index, curve in enumerate(smooth):
        others = [other for number, other in enumerate(smooth) if number != index]
        distances.append(rms_difference(curve, [mean(values) for values in zip(*others, strict=True)]))
    return mean(distances)
