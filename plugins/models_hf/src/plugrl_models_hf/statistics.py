"""Log-probabilities and entropies of tokens from hidden states, without holding all logits at once.

N tokens, hidden size H, vocabulary size V. The full logits [N, V] in fp32 are the largest tensor of a training step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

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
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return fp32 ``(log-probabilities [N], entropies [N] or None)`` of ``tokens`` [N] given ``hidden`` [N, H].

    Entropies are in nats. Temperature 0 (greedy) counts as 1.
    """

    def part(states: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return logits_statistics(head(states), ids, temperature=temperature, compute_entropy=compute_entropy)

    total = tokens.shape[0] * vocab_size
    recompute = torch.is_grad_enabled()
    if total <= (WHOLE_ELEMENTS if recompute else CHUNK_ELEMENTS):
        return part(hidden, tokens)
    rows = max(1, CHUNK_ELEMENTS // vocab_size)
    parts = [
        checkpoint(part, states, ids, use_reentrant=False) if recompute else part(states, ids)
        for states, ids in zip(hidden.split(rows), tokens.split(rows), strict=True)
    ]
    log_probs = torch.cat([values for values, _ in parts])
    return log_probs, torch.cat([values for _, values in parts]) if compute_entropy else None


def logits_statistics(
    logits: torch.Tensor, tokens: torch.Tensor, *, temperature: float = 1.0, compute_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return fp32 ``(log-probabilities [N], entropies [N] or None)`` of ``tokens`` [N] under ``logits`` [N, V]."""
    logits = logits.float()
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    all_log_probs = torch.log_softmax(logits, dim=-1)
    log_probs = all_log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    if not compute_entropy:
        return log_probs, None
    return log_probs, -(all_log_probs.exp() * all_log_probs).sum(dim=-1)
