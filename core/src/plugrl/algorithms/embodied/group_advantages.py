"""Advantages from comparing the scenes of a group: episodes that began alike, or the turns of one question.

All return (advantages, None): what a scene is compared with is no return that a critic could learn. A scene without
``valid`` (its simulator died, its episode was dropped) takes no part in its group's statistics.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from plugrl.algorithms.embodied.rewards import episode_scores
from plugrl.algorithms.group_advantages import normalised
from plugrl.algorithms.groups import find_groups
from plugrl.algorithms.masking import as_mask, full_precision, zero_masked
from plugrl.errors import UserError, one_of

EPSILON = 1e-6
"""Added to a group's standard deviation."""


def check_groups(what: str, scenes: int, group_size: int, *, smallest: int = 2) -> None:
    """Raise UserError unless ``scenes`` can be cut into groups of at least ``smallest``."""
    if group_size < smallest:
        raise UserError(
            f"{what} compares the scenes of a group, so that algorithm.group_size must be at least {smallest}, "
            f"not {group_size}."
        )
    if scenes % group_size:
        raise UserError(f"{what}: {scenes} scenes cannot be cut into groups of {group_size} (algorithm.group_size).")


def normalise_groups(values: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return (value - mean) / (std + 1e-6) within each group, both [N]; 0 where a group has one valid value or none."""
    exact = full_precision(values)
    counted = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else as_mask(valid)
    groups = find_groups(group_ids[counted], int(counted.sum()), values.device)
    result = torch.zeros_like(exact)
    result[counted] = zero_masked(normalised(exact[counted], groups, True, EPSILON), ~groups.single)
    return result


def spread(row: Tensor, rewards: Tensor, mask: Tensor | None) -> Tensor:
    """Write the value of each scene [B] on its valid steps: [S, B], 0 elsewhere."""
    full = row.unsqueeze(0).expand(rewards.shape[0], -1)
    return full.clone() if mask is None else zero_masked(full, mask)


def grpo(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    dones: Tensor,
    group_size: int = 1,
    valid: Tensor | None = None,
) -> tuple[Tensor, None]:
    """GRPO: the score of each episode, normalised over its group, on every valid step. Source: arXiv:2402.03300.

    Args:
        rewards: [S, B]; the score is their sum up to the first end.
        mask: bool [S, B], the steps that count.
        dones: bool [S + 1, B].
        group_size: scenes of a group, at least 2.
        valid: bool [B].

    Raises:
        UserError: (a ValueError) groups of one, or scenes that cannot be cut into groups.
    """
    scenes = rewards.shape[1]
    check_groups("grpo", scenes, group_size)
    ids = torch.arange(scenes, device=rewards.device) // group_size
    return spread(normalise_groups(episode_scores(rewards, dones), ids, valid), rewards, mask), None


def grpo_video(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    group_size: int = 1,
    valid: Tensor | None = None,
    mode: Literal["frame", "video"] = "frame",
) -> tuple[Tensor, None]:
    """Advantages for each frame: rewards [S, B] normalised over the group, frame by frame or over all frames together.

    Raises:
        UserError: (a ValueError) an unknown mode, groups of one, or scenes that cannot be cut into groups.
    """
    if mode not in ("frame", "video"):
        raise UserError(f'grpo_video has no mode "{mode}". Known: frame, video.')
    frames, scenes = rewards.shape
    check_groups("grpo_video", scenes, group_size, smallest=2 if mode == "frame" else 1)
    groups = (torch.arange(scenes, device=rewards.device) // group_size).expand(frames, scenes)
    if mode == "frame":
        groups = groups + torch.arange(frames, device=rewards.device).unsqueeze(1) * scenes
    counted = torch.ones_like(rewards, dtype=torch.bool) if mask is None else as_mask(mask)
    if valid is not None:
        counted = counted & as_mask(valid).unsqueeze(0)
    advantages = normalise_groups(rewards.reshape(-1), groups.reshape(-1), counted.reshape(-1)).reshape(rewards.shape)
    return advantages, None


def grpo_dynamic(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    idx_to_traj: Tensor,
    group_size: int = 1,
    mode: Literal["turn", "trajectory"] = "turn",
) -> tuple[Tensor, None]:
    """Advantages for the turns of conversations of different lengths; rewards [N], one a turn.

    Args:
        rewards: [N].
        mask: bool [N].
        idx_to_traj: [N], the number of the trajectory of each turn, from 0; ``group_size`` of them belong together.
        group_size: trajectories of a question, at least 2.
        mode: ``turn`` normalises over all turns of a question, ``trajectory`` over the mean rewards of trajectories,
            and gives each turn what its trajectory has.

    Raises:
        UserError: (a ValueError) an unknown mode, groups of one, or trajectories that cannot be cut into groups.
    """
    known = ("turn", "trajectory")
    if mode not in known:
        raise UserError(f'grpo_dynamic has no mode "{mode}". Known: {one_of(known)}.')
    turns = torch.as_tensor(idx_to_traj, device=rewards.device)
    count = int(turns.max()) + 1 if turns.numel() else 0
    check_groups("grpo_dynamic", count, group_size)
    if mode == "turn":
        row = normalise_groups(rewards, turns // group_size)
    else:
        exact = full_precision(rewards)
        sums = exact.new_zeros(count).index_add_(0, turns, exact)
        means = sums / torch.bincount(turns, minlength=count).clamp(min=1)
        row = normalise_groups(means, torch.arange(count, device=rewards.device) // group_size)[turns]
    return (row if mask is None else zero_masked(row, mask)), None
