"""Optimal token baselines: a group baseline for each time step, weighted by an estimate of the gradient's size."""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.groups import GroupIds, Groups, find_groups
from plugrl.algorithms.masking import as_mask, full_precision, return_to_go, zero_masked
from plugrl.errors import UserError


def optimal_token_baseline(
    token_rewards: Tensor,
    response_mask: Tensor,
    *,
    group_ids: GroupIds | None = None,
    old_log_probs: Tensor | None = None,
    sum_pi_squared: Tensor | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return-to-go minus a baseline for each time step of a group. All tensors are [B, T].

    With w_t = 1 - 2 pi_t + sum pi_t^2 (times the squared rollout weight) and W its running sum over valid tokens, the
    baseline of a step is sum(G W) / (sum W + 1e-8) over the group's rows that are valid there. It is 0 in a group of
    one and on the tail of the longest row that no other row reaches: there is nothing to compare with.

    Args:
        old_log_probs: log-probability of each token when sampled.
        sum_pi_squared: sum over the vocabulary of the squared probabilities at each token.
        rollout_is_weights: weights that correct for a different sampler; optional.

    Raises:
        UserError: (a ValueError) a missing tensor or ``group_ids``.
    """
    if old_log_probs is None or sum_pi_squared is None:
        raise UserError("The optimal token baseline needs old_log_probs and sum_pi_squared, both of each token.")
    mask = as_mask(response_mask)
    groups = find_groups(group_ids, mask.shape[0], mask.device)
    returns = return_to_go(full_precision(token_rewards), mask)
    weights = _cumulative_weights(mask, old_log_probs, sum_pi_squared, rollout_is_weights)
    baseline = groups.total(zero_masked(returns * weights, mask)) / (groups.total(zero_masked(weights, mask)) + 1e-8)
    shared = torch.arange(mask.shape[1], device=mask.device) < _second_longest(mask, groups).unsqueeze(-1)
    return zero_masked(returns - zero_masked(baseline, shared), mask), returns


def tir_optimal_token_baseline(
    token_rewards: Tensor,
    response_mask: Tensor,
    *,
    group_ids: GroupIds | None = None,
    old_log_probs: Tensor | None = None,
    sum_pi_squared: Tensor | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same after moving each row's valid tokens together, for responses with observations (tool calls) between.

    Arguments and errors as :func:`optimal_token_baseline`; the results stand at the original positions.
    """
    mask = as_mask(response_mask)
    order = torch.argsort((~mask).to(torch.int8), dim=1, stable=True)

    def compact(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.gather(1, order)

    compacted = optimal_token_baseline(
        token_rewards.gather(1, order),
        mask.gather(1, order),
        group_ids=group_ids,
        old_log_probs=compact(old_log_probs),
        sum_pi_squared=compact(sum_pi_squared),
        rollout_is_weights=compact(rollout_is_weights),
    )
    advantages, returns = (torch.zeros_like(part).scatter(1, order, part) for part in compacted)
    return advantages, returns


def _cumulative_weights(
    mask: Tensor, old_log_probs: Tensor, sum_pi_squared: Tensor, rollout_is_weights: Tensor | None
) -> Tensor:
    """Return W [B, T], the running sum over valid tokens of 1 - 2 pi + sum pi^2, an estimate of the gradient's size."""
    weights = 1 - 2 * full_precision(old_log_probs).exp() + full_precision(sum_pi_squared)
    if rollout_is_weights is not None:
        weights = weights * rollout_is_weights**2
    return zero_masked(weights, mask).cumsum(-1)


def _second_longest(mask: Tensor, groups: Groups) -> Tensor:
    """Return for each row [B] the end of the second longest row of its group; 0 in a group of one."""
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    ends = zero_masked(positions.expand(mask.shape), mask).amax(dim=1)
    result = torch.zeros_like(ends)
    for group in range(groups.count):
        rows = groups.index == group
        longest = ends[rows].sort(descending=True).values
        result[rows] = longest[1] if longest.numel() > 1 else 0
    return result
