"""Log-probabilities and other statistics of tokens from hidden states, without holding all logits at once.

N tokens, hidden size H, vocabulary size V. The full logits [N, V] in fp32 are the largest tensor of a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint


class Statistics(NamedTuple):
    """What is known of N tokens, fp32 [N] each; what was not asked for is None.

    sum_pi_squared: sum over the vocabulary of the squared probabilities.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor | None = None
    sum_pi_squared: torch.Tensor | None = None


Head = Callable[[torch.Tensor], torch.Tensor]
"""Maps hidden states [N, H] to logits [N, V]."""

CHUNK_ELEMENTS = 1 << 24
"""Logits held at a time when they are computed in chunks (64 MiB in fp32)."""

WHOLE_ELEMENTS = 1 << 26
"""Up to this many logits (256 MiB in fp32) a backward pass keeps them; beyond, chunks are computed a second time."""


def token_statistics(
    head: Head,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    *,
    vocab_size: int,
    temperature: float = 1.0,
    compute_entropy: bool = False,
    compute_sum_pi_squared: bool = False,
) -> Statistics:
    """Return the statistics of ``tokens`` [N] given the ``hidden`` states [N, H] that predict them.

    Entropies are in nats. Temperature 0 (greedy) counts as 1.
    """

    def part(states: torch.Tensor, ids: torch.Tensor) -> Statistics:
        return logits_statistics(
            head(states), ids, temperature=temperature, compute_entropy=compute_entropy,
            compute_sum_pi_squared=compute_sum_pi_squared,
        )  # fmt: skip

    total = tokens.shape[0] * vocab_size
    recompute = torch.is_grad_enabled()
    if total <= (WHOLE_ELEMENTS if recompute else CHUNK_ELEMENTS):
        return part(hidden, tokens)
    rows = max(1, CHUNK_ELEMENTS // vocab_size)
    parts = [
        checkpoint(part, states, ids, use_reentrant=False) if recompute else part(states, ids)
        for states, ids in zip(hidden.split(rows), tokens.split(rows), strict=True)
    ]
    return Statistics(*(None if values[0] is None else torch.cat(values) for values in zip(*parts, strict=True)))


def logits_statistics(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    temperature: float = 1.0,
    compute_entropy: bool = False,
    compute_sum_pi_squared: bool = False,
) -> Statistics:
    """Return the statistics of ``tokens`` [N] under ``logits`` [N, V]."""
    logits = logits.float()
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    all_log_probs = torch.log_softmax(logits, dim=-1)
    log_probs = all_log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return Statistics(
        log_probs,
        -(all_log_probs.exp() * all_log_probs).sum(dim=-1) if compute_entropy else None,
        (2 * all_log_probs).exp().sum(dim=-1) if compute_sum_pi_squared else None,
    )
