"""The heads: from hidden values to a distribution of actions, with sampling and recomputation through one function."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from plugrl_models_policy.config import PolicyConfig

_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class Head(nn.Module):
    """A distribution for each of C actions in a chunk and D dimensions, independent of one another.

    What is drawn and remembered is the *choice* [B, C, D]: the number itself, or the bin. :meth:`actions` turns it into
    what the environment executes.
    """

    low: Tensor
    high: Tensor

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        low, high = config.bounds
        self.shape = (config.num_action_chunks, config.action_dim)
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("high", torch.tensor(high), persistent=False)

    @abstractmethod
    def sample(self, hidden: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator | None
               ) -> Tensor:  # fmt: skip
        """Draw a choice [B, C, D]."""

    @abstractmethod
    def mode(self, hidden: Tensor) -> Tensor:
        """Return the most likely choice [B, C, D]."""

    @abstractmethod
    def log_probs(
        self, hidden: Tensor, choice: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (densities of a Gaussian) and entropies, each fp32 [B, C, D]."""

    @abstractmethod
    def actions(self, choice: Tensor) -> Tensor:
        """Return executable actions, float32 [B, C, D] between low and high."""

    @abstractmethod
    def distance(self, hidden: Tensor, actions: Tensor) -> Tensor:
        """Return how badly the distribution explains given actions, [B, C, D]: what supervised training minimises."""


class GaussianHead(Head):
    """Normal distributions, not squashed: what is drawn outside the bounds is clipped when it is executed.

    The density is that of the draw before clipping, so that its gradient has no gaps. ``temperature`` multiplies the
    deviation. ``top_k`` and ``top_p`` mean nothing here.
    """

    def __init__(self, width: int, config: PolicyConfig) -> None:
        super().__init__(config)
        count = config.num_action_chunks * config.action_dim
        self.bounds_of_log_std = math.log(config.min_std), math.log(config.max_std)
        self.dependent = config.std == "dependent"
        self.mean = _last(width, count)
        if self.dependent:
            self.log_std = _last(width, count)
            nn.init.constant_(self.log_std.bias, math.log(config.init_std))
        else:
            self.log_std_value = nn.Parameter(torch.full((count,), math.log(config.init_std)))

    def _parameters_of(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(hidden).float().unflatten(-1, self.shape)
        log_std = (self.log_std(hidden) if self.dependent else self.log_std_value).float().unflatten(-1, self.shape)
        return mean, log_std.clamp(*self.bounds_of_log_std).expand_as(mean)

    def sample(self, hidden: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator | None
               ) -> Tensor:  # fmt: skip
        """Draw numbers [B, C, D]; they may lie outside the bounds."""
        mean, log_std = self._parameters_of(hidden)
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        return mean + noise * log_std.exp() * temperature

    def mode(self, hidden: Tensor) -> Tensor:
        """Return the means [B, C, D]."""
        return self._parameters_of(hidden)[0]

    def log_probs(
        self, hidden: Tensor, choice: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        """Return log-densities, which may be above 0, and differential entropies, fp32 [B, C, D]."""
        mean, log_std = self._parameters_of(hidden)
        log_std = log_std + math.log(temperature)
        scaled = (choice.float() - mean) * torch.exp(-log_std)
        return -0.5 * scaled.square() - log_std - _LOG_ROOT_2_PI, log_std + _LOG_ROOT_2_PI + 0.5

    def actions(self, choice: Tensor) -> Tensor:
        """Return the numbers, clipped to the bounds."""
        return torch.maximum(torch.minimum(choice.float(), self.high), self.low)

    def distance(self, hidden: Tensor, actions: Tensor) -> Tensor:
        """Return squared errors of the means: the deviation is left as it is for exploration."""
        return (self._parameters_of(hidden)[0] - actions.float()).square()


class DiscreteHead(Head):
    """A categorical distribution over evenly spread bins for each dimension."""

    def __init__(self, width: int, config: PolicyConfig) -> None:
        super().__init__(config)
        self.num_bins = config.num_bins
        self.logits = _last(width, config.num_action_chunks * config.action_dim * config.num_bins)

    def _logits(self, hidden: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
        """Return logits [B, C, D, bins]; those that are ruled out are minus infinity."""
        logits = self.logits(hidden).float().unflatten(-1, (*self.shape, self.num_bins)) / temperature
        if 0 < top_k < self.num_bins:
            least = logits.topk(top_k, -1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if top_p < 1:
            ordered, order = logits.sort(-1, descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            ruled_out = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
            logits = logits.masked_fill(ruled_out, -torch.inf)
        return logits

    def sample(self, hidden: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator | None
               ) -> Tensor:  # fmt: skip
        """Draw bins, int64 [B, C, D]."""
        logits = self._logits(hidden, temperature, top_k, top_p)
        # One uniform number for each draw: the inverse of the distribution function. Rows cannot influence each other.
        uniform = torch.rand(logits.shape[:-1], generator=generator).to(logits.device)
        cumulative = logits.softmax(-1).cumsum(-1)
        bins = torch.searchsorted(cumulative, (uniform.unsqueeze(-1) * cumulative[..., -1:]), right=True).squeeze(-1)
        allowed = logits.isfinite()
        last = (allowed * torch.arange(self.num_bins, device=logits.device)).amax(-1)
        return torch.minimum(bins, last)

    def mode(self, hidden: Tensor) -> Tensor:
        """Return the most likely bins."""
        return self._logits(hidden, 1.0, 0, 1.0).argmax(-1)

    def log_probs(
        self, hidden: Tensor, choice: Tensor, temperature: float, top_k: int, top_p: float
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities, at most 0, and entropies in nats, fp32 [B, C, D]."""
        every = self._logits(hidden, temperature, top_k, top_p).log_softmax(-1)
        chosen = every.gather(-1, choice.long().unsqueeze(-1)).squeeze(-1)
        # The entropy of what is ruled out is 0, and so must be its gradient.
        finite = every.masked_fill(every == -torch.inf, 0.0)
        return chosen, -(finite.exp() * finite).sum(-1)

    def actions(self, choice: Tensor) -> Tensor:
        """Return the centres of the bins."""
        return self.low + (self.high - self.low) * choice.float() / (self.num_bins - 1)

    def distance(self, hidden: Tensor, actions: Tensor) -> Tensor:
        """Return the negative log-probabilities of the bins nearest to the actions."""
        place = (actions.float() - self.low) / (self.high - self.low) * (self.num_bins - 1)
        nearest = place.round().clamp(0, self.num_bins - 1).long()
        return -self.log_probs(hidden, nearest, 1.0, 0, 1.0)[0]


def build_head(width: int, config: PolicyConfig) -> Head:
    """Return the head that the configuration names, for hidden values [B, width]."""
    return GaussianHead(width, config) if config.head == "gaussian" else DiscreteHead(width, config)


def _last(width: int, count: int) -> nn.Linear:
    """Return a layer whose outputs are near 0 at first: a policy that begins without preferences explores."""
    layer = nn.Linear(width, count)
    nn.init.orthogonal_(layer.weight, 0.01)
    nn.init.zeros_(layer.bias)
    return layer
