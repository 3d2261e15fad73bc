"""The sampling loop: rows of a batch, from prefill to their last token.

U distinct prompts, A rows, T new tokens at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plugrl.rollouts.base import SamplingParams
from plugrl_rollout_hf.decoder import Decoder
from plugrl_rollout_hf.sampling import choose, uniforms


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sample to draw: the prompt's tokens, its place in the request, its seed and the sample's number."""

    tokens: tuple[int, ...]
    prompt_index: int
    sample_index: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What the rows of one batch became: tokens and fp32 log-probabilities [A, T], lengths and stop flags [A]."""

    tokens: torch.Tensor
    log_probs: torch.Tensor
    lengths: torch.Tensor
    stopped: torch.Tensor


def batches(rows: Sequence[Row], max_batch_size: int | None) -> list[list[Row]]:
    """Cut rows into batches of at most that many, prompts of one length and samples of one prompt together."""
    ordered = sorted(rows, key=lambda row: (len(row.tokens), row.tokens))
    size = max_batch_size or max(1, len(ordered))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def generate_batch(
    decoder: Decoder,
    rows: Sequence[Row],
    params: SamplingParams,
    *,
    stop_ids: Sequence[int],
    device: torch.device,
    compact_at: float,
) -> Drawn:
    """Draw all ``rows`` at once; rows with equal prompts stand next to each other and share a prefill.

    Rows that met a stop id leave the batch once they are ``compact_at`` of it. Call it under inference mode.
    """
    ids, mask, owner = _prompt_batch(rows, device)
    draws = _draws(rows, params, device)
    stops = torch.tensor(sorted(stop_ids), dtype=torch.long, device=device)
    logits = decoder.prefill(ids, mask)[owner]
    decoder.fork(owner, params.max_new_tokens)
    is_stop = torch.zeros(logits.shape[-1], dtype=torch.bool, device=device).index_fill_(0, stops, True)

    num_rows = len(rows)
    tokens = torch.zeros(params.max_new_tokens, num_rows, dtype=torch.long, device=device)
    log_probs = torch.zeros(params.max_new_tokens, num_rows, device=device)
    lengths = torch.full((num_rows,), params.max_new_tokens, dtype=torch.long, device=device)
    stopped = torch.zeros(num_rows, dtype=torch.bool, device=device)
    active = torch.arange(num_rows, device=device)
    running = torch.ones(num_rows, dtype=torch.bool, device=device)
    for step in range(params.max_new_tokens):
        forbidden = stops if step < params.min_new_tokens and stops.numel() else None
        chosen, chosen_log_probs = choose(logits, None if draws is None else draws[step], params, forbidden)
        tokens[step].index_copy_(0, active, chosen)
        log_probs[step].index_copy_(0, active, chosen_log_probs)
        num_running = running.numel()
        if stops.numel():
            ended = running & is_stop[chosen]
            running &= ~ended
            num_running = int(running.sum())
            lengths[active[ended]] = step + 1
            stopped[active[ended]] = True
        if num_running == 0 or step + 1 == params.max_new_tokens:
            break
        if running.numel() - num_running >= compact_at * running.numel():
            kept = running.nonzero().flatten()
            decoder.keep(kept)
            active, chosen, running = active[kept], chosen[kept], running[kept]
            draws = None if draws is None else draws[:, kept]
        logits = decoder.step(chosen)
    return Drawn(tokens=tokens.t(), log_probs=log_probs.t(), lengths=lengths, stopped=stopped)


def _prompt_batch(rows: Sequence[Row], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the distinct prompts left-padded [U, P], their mask [U, P], and the prompt of each row [A]."""
    distinct: list[tuple[int, ...]] = []
    owner = []
    for row in rows:
        if not distinct or distinct[-1] != row.tokens:
            distinct.append(row.tokens)
        owner.append(len(distinct) - 1)
    width = max(map(len, distinct))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in distinct], dtype=torch.long)
    lengths = torch.tensor([len(prompt) for prompt in distinct])
    mask = torch.arange(width) >= width - lengths[:, None]
    return ids.to(device), mask.to(device), torch.tensor(owner, device=device)


def _draws(rows: Sequence[Row], params: SamplingParams, device: torch.device) -> torch.Tensor | None:
    """Return every random number the rows will use, [T, A], or None when sampling is greedy."""
    if params.temperature == 0.0:
        return None
    table = uniforms([row.seed for row in rows], [row.sample_index for row in rows], params.max_new_tokens)
    return table.t().contiguous().to(device)
