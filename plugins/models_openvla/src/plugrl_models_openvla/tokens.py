"""Actions as tokens: the last ids of the text vocabulary stand for bins of the interval [-1, 1].

``n_bins`` edges are spread evenly over the interval, so there are ``n_bins - 1`` bins with a centre each. The highest
id is the lowest value, and the two lowest ids share the topmost centre (OpenVLA, https://arxiv.org/abs/2406.09246).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from plugrl.errors import ConfigError, DataError


@dataclass(frozen=True)
class ActionTokens:
    """The ids ``[limit - n_bins, limit)`` and the values between -1 and 1 that they stand for.

    Args:
        limit: one above the highest action id: the size of the text vocabulary without its padding.
        n_bins: number of action ids, 256 in published checkpoints.
    """

    limit: int
    n_bins: int = 256

    def __post_init__(self) -> None:
        if not 2 <= self.n_bins <= self.limit:
            raise ConfigError(
                f"n_action_bins: {self.n_bins} action tokens need a text vocabulary of at least as many, and at least "
                f"2; it has {self.limit} without its padding."
            )

    @classmethod
    def of(cls, text_vocab: int, pad_multiple: int, n_bins: int = 256) -> ActionTokens:
        """Return the tokens of a vocabulary of ``text_vocab`` embeddings, the last ``pad_multiple`` of them padding."""
        return cls(text_vocab - pad_multiple, n_bins)

    @property
    def first(self) -> int:
        """The lowest action id."""
        return self.limit - self.n_bins

    @cached_property
    def edges(self) -> torch.Tensor:
        """Borders of the bins, float64 [n_bins], ascending."""
        return torch.linspace(-1.0, 1.0, self.n_bins, dtype=torch.float64)

    @cached_property
    def centres(self) -> torch.Tensor:
        """Values of the bins, float64 [n_bins - 1], ascending."""
        return (self.edges[:-1] + self.edges[1:]) / 2

    def index(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the bins of ids of any shape; ids outside the action tokens count as the nearest bin."""
        return (self.limit - 1 - ids).clamp(0, self.n_bins - 2)

    def decode(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the normalised actions of ids: float32 of the same shape, on the same device."""
        return self.centres.float().to(ids.device)[self.index(ids)]

    def encode(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the ids (int64) of normalised actions of any shape; values beyond [-1, 1] count as its ends.

        Raises DataError for values that are no numbers.
        """
        values = actions.detach().cpu().double()
        if not torch.isfinite(values).all():
            raise DataError("actions to turn into tokens hold NaN or infinity.")
        bins = torch.bucketize(values.clamp(-1.0, 1.0), self.edges, right=True)
        return (self.limit - bins).to(actions.device)
