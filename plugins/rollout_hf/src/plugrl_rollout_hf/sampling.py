"""Choosing tokens: random numbers by counter, truncation, the draw, and log-probabilities. No loop over rows.

A rows, V vocabulary, T steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plugrl.rollouts.base import SamplingParams

_BITS = 48
_BLOCK = 512


def _signed(value: int) -> int:
    """Return a 64-bit pattern as the int64 that holds it."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_STEP = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)
_SAMPLE = _signed(0xD1342543DE82EF95)


def _shift(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right and fill with zeros; torch's own shift of int64 keeps the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _mix(values: torch.Tensor) -> torch.Tensor:
    """Scramble int64 patterns: the output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = (values ^ _shift(values, 30)) * _MIX_1
    values = (values ^ _shift(values, 27)) * _MIX_2
    return values ^ _shift(values, 31)


def uniforms(seeds: Sequence[int], samples: Sequence[int], num_steps: int) -> torch.Tensor:
    """Return float64 [A, T] in (0, 1): entry (a, t) depends on (seeds[a], samples[a], t) and nothing else.

    Counter-based, so that a row draws the same numbers in whatever batch it stands. 48 random bits each.
    """
    seed = _mix(torch.tensor([_signed(int(value)) for value in seeds], dtype=torch.int64) + _STEP)
    sample = torch.tensor(list(samples), dtype=torch.int64) + 1
    key = _mix(seed + sample * _SAMPLE)
    counter = torch.arange(1, num_steps + 1, dtype=torch.int64)
    bits = _shift(_mix(key[:, None] + counter * _STEP), 64 - _BITS)
    return (bits.double() + 0.5) * 2.0**-_BITS


def choose(
    logits: torch.Tensor, draws: torch.Tensor | None, params: SamplingParams, forbidden: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(tokens [A], log-probabilities fp32 [A])`` for next-token ``logits`` [A, V].

    draws float64 [A] in (0, 1), None for greedy. forbidden: ids [K] that may not be chosen now. Log-probabilities are
    those of the temperature-scaled distribution before truncation; at temperature 0 those of temperature 1.
    """
    logits = logits.float()
    if params.temperature not in (0.0, 1.0):
        logits = logits / params.temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    if draws is None:
        weights = log_probs if forbidden is None else log_probs.index_fill(1, forbidden, -torch.inf)
        tokens = weights.argmax(dim=-1)
    else:
        weights = log_probs.exp()
        if forbidden is not None:
            weights.index_fill_(1, forbidden, 0.0)
        tokens = draw(truncate(weights, params.top_k, params.top_p), draws)
    return tokens, log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def truncate(weights: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return ``weights`` [A, V] with what lies outside the k largest, then outside the nucleus of p, set to zero.

    The nucleus is the smallest set of largest weights that holds at least p of what top-k left (Holtzman et al. 2020).
    Weights equal to the smallest one kept are kept too.
    """
    if 0 < top_k < weights.shape[-1]:
        smallest = weights.topk(top_k, dim=-1).values[:, -1:]
        weights = torch.where(weights >= smallest, weights, 0.0)
    if top_p < 1.0:
        weights = torch.where(weights >= _nucleus_floor(weights, top_p), weights, 0.0)
    return weights


def _nucleus_floor(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the smallest weight [A, 1] inside each row's nucleus, looking at no more of the largest than needed."""
    vocab_size = weights.shape[-1]
    target = weights.sum(dim=-1, keepdim=True, dtype=torch.float64) * top_p
    size = min(256, vocab_size)
    while True:
        largest = weights.topk(size, dim=-1).values
        mass = largest.double().cumsum(dim=-1)
        if size == vocab_size or bool((mass[:, -1:] >= target).all()):
            break
        size = min(size * 8, vocab_size)
    position = (mass < target).sum(dim=-1, keepdim=True).clamp_(max=size - 1)
    return largest.gather(1, position)


def draw(weights: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return one index [A] per row of unnormalised ``weights`` [A, V] by inverting the cumulative sum at ``draws``.

    A large vocabulary is searched in two levels: the block of 512 first, then inside it. Sums are in float64.
    """
    num_rows, vocab_size = weights.shape
    if vocab_size <= 4 * _BLOCK:
        tokens = _invert(weights, draws)[0]
    else:
        padding = -vocab_size % _BLOCK
        blocks = torch.nn.functional.pad(weights, (0, padding)).view(num_rows, -1, _BLOCK)
        sizes = blocks.sum(dim=-1, dtype=torch.float64)
        block, mass, target = _invert(sizes, draws)
        size = sizes.gather(1, block.unsqueeze(1)).squeeze(1)
        before = mass.gather(1, block.unsqueeze(1)).squeeze(1) - size
        inside = blocks[torch.arange(num_rows, device=weights.device), block]
        tokens = block * _BLOCK + _invert(inside, (target - before) / size)[0]
        tokens.clamp_(max=vocab_size - 1)
    impossible = weights.gather(1, tokens.unsqueeze(1)).squeeze(1) <= 0
    # Rounding at the very edge of a cumulative sum may point at a weight of zero.
    return torch.where(impossible, weights.argmax(dim=-1), tokens) if bool(impossible.any()) else tokens


def _invert(weights: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find where the cumulative share of each row passes ``draws`` [A].

    Returns the index [A], the cumulative sums [A, V] and the sum aimed at [A], all sums in float64.
    """
    mass = weights.cumsum(dim=-1, dtype=torch.float64)
    target = mass[:, -1] * draws
    index = (mass <= target.unsqueeze(1)).sum(dim=-1).clamp_(max=weights.shape[-1] - 1)
    return index, mass, target
