"""Log-probabilities and other statistics of tokens from logits whose vocabulary is shared over ranks.

N tokens, V' entries of the vocabulary on this rank. What crosses ranks are numbers per token, never logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from plugrl_engine_megatron.library import parallel_state, reduce_from_tensor_model_parallel_region
from plugrl_models_hf.statistics import CHUNK_ELEMENTS, WHOLE_ELEMENTS, Statistics

Head = Callable[[torch.Tensor], torch.Tensor]
"""Maps hidden states [N, H] to this rank's logits [N, V']."""


def token_statistics(
    head: Head,
    hidden: torch.Tensor,
    tokens: torch.Tensor,
    *,
    num_local: int,
    first: int,
    vocab_size: int,
    temperature: float = 1.0,
    compute_entropy: bool = False,
    compute_sum_pi_squared: bool = False,
) -> Statistics:
    """Return the statistics of ``tokens`` [N] given the ``hidden`` states [N, H] that predict them. Collective.

    ``num_local`` entries from ``first`` on are this rank's; those from ``vocab_size`` on only fill up. As in
    :func:`plugrl_models_hf.statistics.token_statistics`, which see, logits are computed in chunks when there are many.
    """

    def part(states: torch.Tensor, ids: torch.Tensor) -> Statistics:
        return local_statistics(
            head(states), ids, first=first, vocab_size=vocab_size, temperature=temperature,
            compute_entropy=compute_entropy, compute_sum_pi_squared=compute_sum_pi_squared,
        )  # fmt: skip

    total, recompute = tokens.shape[0] * num_local, torch.is_grad_enabled()
    if total <= (WHOLE_ELEMENTS if recompute else CHUNK_ELEMENTS):
        return part(hidden, tokens)
    rows = max(1, CHUNK_ELEMENTS // num_local)
    parts = [
        checkpoint(part, states, ids, use_reentrant=False) if recompute else part(states, ids)
        for states, ids in zip(hidden.split(rows), tokens.split(rows), strict=True)
    ]
    joined: list[Any] = [None if values[0] is None else torch.cat(values) for values in zip(*parts, strict=True)]
    return Statistics(*joined)


def local_statistics(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    *,
    first: int,
    vocab_size: int,
    temperature: float = 1.0,
    compute_entropy: bool = False,
    compute_sum_pi_squared: bool = False,
) -> Statistics:
    """Return the statistics of ``tokens`` [N] under this rank's ``logits`` [N, V']. Collective over the vocabulary."""
    logits = logits.float()
    if temperature not in (0.0, 1.0):
        logits = logits / temperature
    if first + logits.shape[1] > vocab_size:
        filling = torch.arange(first, first + logits.shape[1], device=logits.device) >= vocab_size
        logits = logits.masked_fill(filling, torch.finfo(logits.dtype).min)
    largest = logits.detach().amax(dim=-1)
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() > 1:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest.unsqueeze(-1)
    weights = shifted.exp()
    mine = (tokens >= first) & (tokens < first + logits.shape[1])
    found = shifted.gather(-1, (tokens - first).clamp(0, logits.shape[1] - 1).unsqueeze(-1)).squeeze(-1)
    sums = [weights.sum(dim=-1), torch.where(mine, found, torch.zeros_like(found))]
    if compute_entropy:
        sums.append((weights * shifted).sum(dim=-1))
    if compute_sum_pi_squared:
        sums.append(weights.square().sum(dim=-1))
    total, target, *others = reduce_from_tensor_model_parallel_region(torch.stack(sums)).unbind(0)
    log_total = total.log()
    entropy = log_total - others.pop(0) / total if compute_entropy else None
    squares = others.pop(0) / total.square() if compute_sum_pi_squared else None
    return Statistics(target - log_total, entropy, squares)
