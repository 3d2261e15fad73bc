"""Advantages from returns: with a critic (gae), or with whitening or a greedy baseline in its place.

Masked tokens (padding, observations of an environment) are skipped: they carry neither reward nor discount.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.masking import as_mask, full_precision, last_first, return_to_go, whiten, zero_masked
from plugrl.errors import UserError


def gae(
    token_rewards: Tensor,
    response_mask: Tensor,
    *,
    values: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, whitened over valid tokens. Source: arXiv:1506.02438.

    With d_t = r_t + gamma V_next - V_t: A_t = d_t + gamma lam A_next, where *next* is the next valid token (0 after the
    last). Returns are A + V before whitening. ``values`` [B, T]: value of the state before each response token.

    Raises:
        UserError: (a ValueError) no values, or fewer than two valid tokens.
    """
    if values is None:
        raise UserError("gae needs values: the critic's value before each response token.")
    mask = as_mask(response_mask)
    rewards, states = zero_masked(full_precision(token_rewards), mask), zero_masked(full_precision(values), mask)
    next_value = next_advantage = rewards.new_zeros(rewards.shape[0])
    steps = []
    for valid, reward, value in zip(last_first(mask), last_first(rewards), last_first(states), strict=True):
        delta = reward + gamma * next_value - value
        next_advantage = torch.where(valid, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(valid, value, next_value)
        steps.append(next_advantage)
    raw = zero_masked(torch.stack(steps[::-1], dim=1), mask)
    return zero_masked(whiten(raw, mask), mask), zero_masked(raw + states, mask)


def reinforce_plus_plus(token_rewards: Tensor, response_mask: Tensor, *, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """REINFORCE++: the discounted return-to-go of each token, whitened over valid tokens. Source: arXiv:2501.03262.

    Raises UserError with fewer than two valid tokens.
    """
    returns = return_to_go(full_precision(token_rewards), response_mask, gamma)
    return zero_masked(whiten(returns, response_mask), response_mask), returns


def remax(token_rewards: Tensor, response_mask: Tensor, *, baselines: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """ReMax: the undiscounted return-to-go minus the reward of the greedy response. Source: arXiv:2310.10505.

    ``baselines`` [B]: the greedy reward of each row's prompt. Raises UserError without them.
    """
    if baselines is None:
        raise UserError("remax needs baselines: the reward of the greedy response to each row's prompt.")
    returns = return_to_go(full_precision(token_rewards), response_mask)
    return zero_masked(returns - torch.as_tensor(baselines).to(returns).unsqueeze(-1), response_mask), returns
