"""Which actions a policy learns from."""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.embodied.chunks import flatten_flags, unflatten_steps
from plugrl.algorithms.embodied.group_advantages import check_groups
from plugrl.algorithms.embodied.rewards import valid_until_done
from plugrl.algorithms.masking import as_mask, full_precision, zero_masked


def loss_mask(dones: Tensor, *, chunk_level: bool = False) -> tuple[Tensor, Tensor]:
    """Return which actions count when scenes do not restart: those up to the end of the episode.

    With automatic restarts, or where ends are ignored, every action counts and there is no mask.

    Args:
        dones: bool [n + 1, B, C], see :mod:`plugrl.algorithms.embodied`.
        chunk_level: one entry a chunk, true where any of its actions counts.

    Returns:
        The mask, bool [n, B, C] or [n, B, 1], and the number of valid steps of each scene, float, in that shape; it
        counts steps also where the mask has chunks.
    """
    width = dones.shape[2]
    steps = valid_until_done(flatten_flags(dones))
    mask = unflatten_steps(steps, width)
    if chunk_level:
        mask = mask.any(dim=-1, keepdim=True)
    counts = steps.sum(0).to(torch.float32).reshape(1, -1, 1).expand(mask.shape)
    return mask, counts


def filter_rewards(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    group_size: int,
    lower: float,
    upper: float,
    valid: Tensor | None = None,
) -> Tensor:
    """Leave out the groups whose scenes succeed, or fail, nearly all: they teach nothing.

    Args:
        rewards: [n, B, C].
        mask: bool [n, B, C] or [n, B, 1]; rewards outside do not count. None: all count.
        group_size: scenes of a group.
        lower: smallest mean of a group's summed rewards that is kept (``algorithm.rewards_lower_bound``).
        upper: largest (``algorithm.rewards_upper_bound``).
        valid: bool [B], False for scenes whose episode was dropped: they do not count in the mean.

    Returns:
        The mask with the left-out groups at False, of ``mask``'s shape or the rewards'. Without any entry left there
        is nothing to learn from: skip the update and say so.

    Raises:
        UserError: (a ValueError) groups that do not fit the scenes.
    """
    kept = torch.ones_like(rewards, dtype=torch.bool) if mask is None else as_mask(mask)
    scenes = rewards.shape[1]
    check_groups("filter_rewards", scenes, group_size, smallest=1)
    sums = zero_masked(full_precision(rewards), kept.expand(rewards.shape)).sum(dim=(0, 2))
    counted = torch.ones(scenes, dtype=torch.bool, device=rewards.device) if valid is None else as_mask(valid)
    shaped = counted.reshape(-1, group_size)
    means = zero_masked(sums, counted).reshape(-1, group_size).sum(1) / shaped.sum(1).clamp(min=1)
    inside = (means >= lower) & (means <= upper) & shaped.any(1)
    return kept & inside.repeat_interleave(group_size).reshape(1, -1, 1)
