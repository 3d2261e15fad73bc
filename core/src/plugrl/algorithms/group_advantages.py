"""Advantages from comparing the outcomes of one prompt's samples. All return (advantages, returns), equal, [B, T].

``token_rewards`` [B, T] hold the rewards, ``response_mask`` [B, T] the valid tokens and ``group_ids`` the prompt of
each row (any hashables). Outcome: the sum of a row's rewards. Names and definitions are verl's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from plugrl.algorithms.groups import GroupIds, Groups, broadcast, find_groups, outcomes
from plugrl.algorithms.masking import whiten, zero_masked
from plugrl.errors import UserError

Estimate = tuple[Tensor, Tensor]
"""(advantages, returns), both [B, T]."""


def _start(token_rewards: Tensor, response_mask: Tensor, group_ids: GroupIds | None) -> tuple[Tensor, Groups]:
    scores = outcomes(token_rewards, response_mask)
    return scores, find_groups(group_ids, scores.shape[0], scores.device)


def _both(row_values: Tensor, response_mask: Tensor) -> Estimate:
    advantages = broadcast(row_values, response_mask)
    return advantages, advantages


def _centred(scores: Tensor, groups: Groups) -> Tensor:
    """Return the outcome minus the group's mean; a group of one keeps its outcome."""
    return torch.where(groups.single, scores, scores - groups.mean(scores))


def normalised(scores: Tensor, groups: Groups, by_std: bool, epsilon: float) -> Tensor:
    """Return (outcome - mean) / (std + epsilon) of the group, [B]; without the division unless ``by_std``."""
    centred = _centred(scores, groups)
    return centred / (groups.std(scores) + epsilon) if by_std else centred


def _whitened(values: Tensor, response_mask: Tensor) -> Estimate:
    advantages = zero_masked(whiten(values, response_mask), response_mask)
    return advantages, advantages


def grpo(
    token_rewards: Tensor,
    response_mask: Tensor,
    *,
    group_ids: GroupIds | None = None,
    norm_adv_by_std_in_grpo: bool = True,
    epsilon: float = 1e-6,
) -> Estimate:
    """GRPO: (outcome - mean) / (std + epsilon) of the group; a group of one has mean 0 and std 1.

    ``norm_adv_by_std_in_grpo=False`` leaves the division out (Dr. GRPO, arXiv:2503.20783). Source: arXiv:2402.03300.
    """
    scores, groups = _start(token_rewards, response_mask, group_ids)
    return _both(normalised(scores, groups, norm_adv_by_std_in_grpo, epsilon), response_mask)


def rloo(token_rewards: Tensor, response_mask: Tensor, *, group_ids: GroupIds | None = None) -> Estimate:
    """RLOO: outcome minus the mean of the *other* samples; a group of one keeps its own. Source: arXiv:2402.14740."""
    scores, groups = _start(token_rewards, response_mask, group_ids)
    factor = torch.where(groups.single, 1.0, groups.size / (groups.size - 1).clamp(min=1)).to(scores)
    return _both(_centred(scores, groups) * factor, response_mask)


def rloo_vectorized(token_rewards: Tensor, response_mask: Tensor, *, group_ids: GroupIds | None = None) -> Estimate:
    """RLOO in which a group of one gets 0, having nothing to be compared with: verl's second variant."""
    advantages, _ = rloo(token_rewards, response_mask, group_ids=group_ids)
    groups = find_groups(group_ids, advantages.shape[0], advantages.device)
    advantages = zero_masked(advantages, ~groups.single.unsqueeze(-1))
    return advantages, advantages


def reinforce_plus_plus_baseline(
    token_rewards: Tensor, response_mask: Tensor, *, group_ids: GroupIds | None = None
) -> Estimate:
    """REINFORCE++ with a group baseline: outcome minus mean (a group of one: outcome), whitened over valid tokens.

    Source: arXiv:2501.03262. Raises UserError with fewer than two valid tokens.
    """
    scores, groups = _start(token_rewards, response_mask, group_ids)
    return _whitened(broadcast(_centred(scores, groups), response_mask), response_mask)


def opo(token_rewards: Tensor, response_mask: Tensor, *, group_ids: GroupIds | None = None) -> Estimate:
    """OPO: outcome minus the group's mean weighted by length; a group of one keeps its outcome. arXiv:2505.23585."""
    scores, groups = _start(token_rewards, response_mask, group_ids)
    lengths = (response_mask != 0).sum(-1).to(scores)
    baseline = groups.total(lengths * scores) / groups.total(lengths).clamp(min=1)
    return _both(torch.where(groups.single, scores, scores - baseline), response_mask)


def grpo_passk(
    token_rewards: Tensor,
    response_mask: Tensor,
    *,
    group_ids: GroupIds | None = None,
    norm_adv_by_std_in_grpo: bool = True,
    epsilon: float = 1e-6,
) -> Estimate:
    """Pass@k: the best row of a group gets its lead over the second best, over (std + epsilon); the others 0.

    Source: arXiv:2503.19595. Raises UserError for a group of one.
    """
    scores, groups = _start(token_rewards, response_mask, group_ids)
    if bool(groups.single.any()):
        raise UserError("grpo_passk needs at least two samples of each prompt: set rollout.n to 2 or more.")
    result = torch.zeros_like(scores)
    for group in range(groups.count):
        rows = (groups.index == group).nonzero().squeeze(-1)
        best, where = scores[rows].topk(2)
        result[rows[where[0]]] = best[0] - best[1]
    if norm_adv_by_std_in_grpo:
        result = result / (groups.std(scores) + epsilon)
    return _both(result, response_mask)


def gpg(
    token_rewards: Tensor, response_mask: Tensor, *, group_ids: GroupIds | None = None, f_norm: float = 1.0
) -> Estimate:
    """GPG: alpha (outcome - mean) / f_norm with alpha = rows / rows of non-zero outcome. Source: arXiv:2504.02546.

    A group of one has mean 0.
    """
    scores, groups = _start(token_rewards, response_mask, group_ids)
    alpha = scores.shape[0] / torch.count_nonzero(scores).clamp(min=1)
    return _both(alpha * _centred(scores, groups) / f_norm, response_mask)


def gdpo(
    token_rewards: Tensor,
    response_mask: Tensor,
    *,
    group_ids: GroupIds | None = None,
    reward_components: Mapping[str, Tensor | Sequence[float]] | None = None,
    gdpo_reward_keys: Sequence[str] | None = None,
    gdpo_reward_weights: Sequence[float] | None = None,
    norm_adv_by_std_in_grpo: bool = True,
    epsilon: float = 1e-6,
) -> Estimate:
    """GDPO: grpo of each reward component, summed with weights, whitened over valid tokens. Source: arXiv:2601.05242.

    Args:
        reward_components: the components of each row's reward by name, [B] each.
        gdpo_reward_keys: which of them count; by default all, in the mapping's order.
        gdpo_reward_weights: one weight a component; by default 1.

    Raises:
        UserError: (a ValueError) no components, an unknown key, or not one weight for each.
    """
    if not reward_components:
        raise UserError("gdpo needs reward_components: the parts of each row's reward, by name.")
    keys = list(gdpo_reward_keys or reward_components)
    weights = list(gdpo_reward_weights or [1.0] * len(keys))
    unknown = [key for key in keys if key not in reward_components]
    if unknown or len(weights) != len(keys):
        raise UserError(
            f"gdpo has the components {sorted(reward_components)}; asked for {keys} with {len(weights)} weight(s)."
        )
    scores, groups = _start(token_rewards, response_mask, group_ids)
    total = torch.zeros_like(scores)
    for key, weight in zip(keys, weights, strict=True):
        component = torch.as_tensor(reward_components[key]).to(scores)
        total += weight * normalised(component, groups, norm_adv_by_std_in_grpo, epsilon)
    return _whitened(broadcast(total, response_mask), response_mask)
