"""Statistics of a reward curve: pure functions of lists of numbers, one number for each step in order."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and the ``window - 1`` before it, for the values that have so many before them.

    So the first mean is that of step ``window``. A shorter curve gives nothing.
    """
    return [mean(values[end - window : end]) for end in range(window, len(values) + 1)]


def slope_t(values: Sequence[float]) -> float:
    """Return how many standard errors the least-squares slope over the steps is above 0 (Student's t).

    With errors that are independent from step to step, a curve without a trend exceeds 2 in about 3 of 100 cases. A
    constant curve has 0, an exact line an infinite value. Needs at least three values.
    """
    count = len(values)
    if count < 3:
        raise ValueError(f"a slope needs at least 3 values to be judged, got {count}")
    middle, level = (count - 1) / 2, mean(values)
    spread = math.fsum((step - middle) ** 2 for step in range(count))
    slope = math.fsum((step - middle) * (value - level) for step, value in enumerate(values)) / spread
    residue = math.fsum((value - level - slope * (step - middle)) ** 2 for step, value in enumerate(values))
    error = math.sqrt(residue / (count - 2) / spread)
    if error > 1e-12 * max(1.0, abs(level)):
        return slope / error
    return math.copysign(math.inf, slope) if abs(slope) > 1e-12 * max(1.0, abs(level)) else 0.0


def rise(values: Sequence[float], window: int, last: int | None = None) -> float:
    """Return the mean of the last ``last`` values (by default ``window``) minus the mean of the first ``window``."""
    return mean(values[-(last or window) :]) - mean(values[:window])


def largest_fall(values: Sequence[float]) -> float:
    """Return how far a value lies below the highest one before it, at most; 0 for a curve that never falls."""
    highest, fall = -math.inf, 0.0
    for value in values:
        highest = max(highest, value)
        fall = max(fall, highest - value)
    return fall


def rms_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the root of the mean squared difference of two curves of one length."""
    return math.sqrt(mean([(a - b) ** 2 for a, b in zip(left, right, strict=True)]))


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return Pearson's correlation of two curves of one length; 0 where one of them is constant."""
    left_mean, right_mean = mean(left), mean(right)
    both = math.fsum((a - left_mean) * (b - right_mean) for a, b in zip(left, right, strict=True))
    squares = math.fsum((a - left_mean) ** 2 for a in left) * math.fsum((b - right_mean) ** 2 for b in right)
    return both / math.sqrt(squares) if squares > 0 else 0.0


def mean_curve(curves: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of several curves step by step, as far as the shortest goes."""
    return [mean(values) for values in zip(*curves, strict=False)]


def band(curves: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the lowest and the highest of several curves step by step, as far as the shortest goes."""
    return [(min(values), max(values)) for values in zip(*curves, strict=False)]
