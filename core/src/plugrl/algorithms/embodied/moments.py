"""Statistics that are gathered in parts, on several ranks or of several shards, and are the same for every split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plugrl.algorithms.masking import as_mask, full_precision

EPSILON = 1e-5
"""Added to the standard deviation by which advantages are divided."""


@dataclass(frozen=True)
class Moments:
    """Number, mean and sum of squared deviations of values; ``a + b`` describes those of both.

    A deviation is taken from the mean before it is squared: large values that differ little keep their digits.
    """

    count: float = 0.0
    mean: float = 0.0
    square: float = 0.0

    @classmethod
    def of(cls, values: Tensor, mask: Tensor | None = None) -> Moments:
        """Describe the valid entries of a tensor; ``mask`` has its shape, None counts all."""
        chosen = values.detach() if mask is None else values.detach()[as_mask(mask).expand(values.shape)]
        if not chosen.numel():
            return cls()
        exact = chosen.double()
        mean = exact.mean()
        return cls(float(chosen.numel()), mean.item(), ((exact - mean) ** 2).sum().item())

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets of values. Source: Chan, Golub, LeVeque 1979."""
        count = self.count + other.count
        if not count:
            return Moments()
        gap = other.mean - self.mean
        mean = self.mean + gap * other.count / count
        return Moments(count, mean, self.square + other.square + gap * gap * self.count * other.count / count)

    @property
    def variance(self) -> float:
        """The biased variance; 0 of nothing."""
        return self.square / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """The unbiased standard deviation; 0 of fewer than two values, so that one value is normalised to 0."""
        return math.sqrt(self.square / (self.count - 1)) if self.count > 1 else 0.0


def standardise(values: Tensor, moments: Moments, epsilon: float = EPSILON) -> Tensor:
    """Return (values - mean) / (std + epsilon) with the unbiased standard deviation, in the shape of ``values``."""
    return (full_precision(values) - moments.mean) / (moments.std + epsilon)


@dataclass(frozen=True)
class ExplainedVariance:
    """How much of the spread of returns a critic foresees, gathered in parts: ``a + b``, then ``value``."""

    returns: Moments = Moments()
    errors: Moments = Moments()

    @classmethod
    def of(cls, returns: Tensor, values: Tensor, mask: Tensor | None = None) -> ExplainedVariance:
        """Describe returns and values of the same shape."""
        return cls(Moments.of(returns, mask), Moments.of(returns.double() - values.double(), mask))

    def __add__(self, other: ExplainedVariance) -> ExplainedVariance:
        """Return what both parts say together."""
        return ExplainedVariance(self.returns + other.returns, self.errors + other.errors)

    @property
    def value(self) -> float:
        """1 - var(return - value) / var(return); NaN for fewer than two entries or constant returns."""
        # Equal returns may differ from their mean by a rounding: that is no spread.
        nothing = self.returns.count * (1e-9 * self.returns.mean) ** 2
        if self.returns.count < 2 or self.returns.square <= nothing:
            return math.nan
        return 1 - self.errors.square / self.returns.square


def moments_tensor(moments: Moments, device: torch.device | None = None) -> Tensor:
    """Return the three numbers as a tensor [3] in double precision, to be gathered over ranks."""
    return torch.tensor([moments.count, moments.mean, moments.square], dtype=torch.float64, device=device)
