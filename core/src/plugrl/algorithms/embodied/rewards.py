"""What rewards become before advantages are made of them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from plugrl.algorithms.masking import as_mask, full_precision, zero_masked
from plugrl.errors import UserError

BootstrapType = Literal["standard", "always"]


def mix_rewards(
    rewards: Tensor, model_rewards: Tensor, *, env_reward_weight: float = 1.0, reward_weight: float = 1.0
) -> Tensor:
    """Return env_reward_weight x rewards + reward_weight x model_rewards, all [N, C]; comes before any bootstrap."""
    return env_reward_weight * full_precision(rewards) + reward_weight * full_precision(model_rewards)


def bootstrap_rewards(
    rewards: Tensor,
    values: Tensor,
    *,
    dones: Tensor,
    truncations: Tensor,
    gamma: float,
    kind: BootstrapType = "standard",
    auto_reset: bool = True,
) -> Tensor:
    """Add gamma x V(final observation) where an episode was cut off: what it would have earned later is missing.

    Args:
        rewards: [N, C] of a chunk.
        values: [N] or [N, 1], the value of the last observation of the episode that ended; elsewhere anything.
        dones: bool [N, C], where an episode ended.
        truncations: bool [N, C], where the time ran out.
        kind: ``standard`` adds at truncations alone, ``always`` at every end, success included.
        auto_reset: without it nothing is added: the rollout ends with the episode.

    Returns:
        New rewards [N, C]; the value stands in the column of the flag.

    Raises:
        UserError: (a ValueError) an unknown kind.
    """
    if kind not in ("standard", "always"):
        raise UserError(f'No bootstrap type "{kind}". Known: standard, always.')
    if not auto_reset:
        return rewards
    flags = as_mask(truncations if kind == "standard" else dones)
    later = gamma * full_precision(values).reshape(-1, 1).expand(flags.shape)
    return full_precision(rewards) + zero_masked(later, flags)


def valid_until_done(dones: Tensor) -> Tensor:
    """Return which steps belong to the first episode, its last step included: bool [S, B] of flags [S + 1, B]."""
    return torch.cumsum(as_mask(dones)[:-1].long(), dim=0) == 0


def episode_scores(rewards: Tensor, dones: Tensor) -> Tensor:
    """Return the score [B] of each scene: its rewards [S, B] up to and with the first end in ``dones`` [S + 1, B]."""
    return zero_masked(full_precision(rewards), valid_until_done(dones)).sum(0)
