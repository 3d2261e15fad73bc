"""The distribution over action tokens: one function for acting and for recomputing what was done.

Both paths cut the logits to the action tokens first, then divide by the temperature, then keep the top-k and top-p
tokens, then normalise in fp32. So the ratio of the first update is 1 whatever the settings are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plugrl.errors import ConfigError
from plugrl_models_openvla.tokens import ActionTokens


@dataclass(frozen=True)
class Sampling:
    """How action tokens are drawn.

    Args:
        temperature: logits are divided by it; 0 takes the likeliest token, with log-probabilities at temperature 1.
        top_k: only so many of the likeliest tokens are kept; 0 or -1 keeps all.
        top_p: the fewest likeliest tokens are kept whose probabilities reach this sum; 1 keeps all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise ConfigError(f"temperature: {self.temperature} must be a finite number, at least 0.")
        if self.top_k < -1:
            raise ConfigError(f"top_k: {self.top_k} must be a number of tokens; 0 or -1 keeps all.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p: {self.top_p} must be above 0 and at most 1.")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0


def bin_logprobs(
    logits: torch.Tensor, tokens: ActionTokens, sampling: Sampling, keep: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the log-probabilities of the action tokens, [..., n_bins]; column i is the id ``tokens.first + i``.

    ``logits``: [..., V], or [..., n_bins] where only those were computed. ``keep``: ids [...] of tokens that were
    drawn; they are kept although top-k or top-p would drop them by now, so that what a policy did once never gets
    probability 0 in training. What is dropped is -inf. The result is fp32, or fp64 where the logits are.
    """
    if logits.shape[-1] != tokens.n_bins:
        logits = logits[..., tokens.first : tokens.limit]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.temperature not in (0.0, 1.0):
        logits = logits / sampling.temperature
    dropped = _dropped(logits.detach(), sampling)
    if dropped is not None:
        if keep is not None:
            dropped = dropped.scatter(-1, (keep - tokens.first).unsqueeze(-1), False)
        logits = logits.masked_fill(dropped, -torch.inf)
    return torch.log_softmax(logits, dim=-1)


def _dropped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor | None:
    """Return where top-k and then top-p drop a token; None when they keep all. Equal logits stay together in top-k."""
    dropped = None
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        dropped = logits < least
        logits = logits.masked_fill(dropped, -torch.inf)
    if sampling.top_p < 1:
        probabilities, order = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        beyond = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        dropped = beyond if dropped is None else dropped | beyond
    return dropped


def entropy(logprobs: torch.Tensor) -> torch.Tensor:
    """Return the entropies [...] in nats of log-probabilities [..., n_bins], where 0 log 0 = 0."""
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(dim=-1)


def logprob_of(logprobs: torch.Tensor, ids: torch.Tensor, tokens: ActionTokens) -> torch.Tensor:
    """Return the log-probabilities [...] of action ids [...]."""
    return logprobs.gather(-1, (ids - tokens.first).unsqueeze(-1)).squeeze(-1)


def draw(
    logprobs: torch.Tensor, tokens: ActionTokens, *, greedy: bool = False, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return action ids [...], the likeliest or drawn by ``generator``, from log-probabilities [..., n_bins]."""
    if greedy:
        return logprobs.argmax(dim=-1) + tokens.first
    rows = logprobs.exp().view(-1, tokens.n_bins)
    return torch.multinomial(rows, 1, generator=generator).view(logprobs.shape[:-1]) + tokens.first


def sampling_of(
    mode: str,
    *,
    do_sample: bool = True,
    temperature_train: float = 1.0,
    temperature_eval: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[Sampling, float]:
    """Return how tokens are drawn in ``train`` or ``eval`` mode, and the temperature at which they are recomputed.

    Without ``do_sample``, and at a temperature of 0, the likeliest token is taken; probabilities are then those at
    temperature 1.
    """
    temperature = temperature_eval if mode == "eval" else temperature_train
    if not do_sample or temperature <= 0:
        return Sampling(temperature=0.0), 1.0
    return Sampling(temperature, top_k, top_p), temperature
