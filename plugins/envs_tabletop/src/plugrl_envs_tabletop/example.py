"""A small environment for the conformance kit."""

from __future__ import annotations

import torch

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv


def tabletop(num_envs: int) -> tuple[TabletopEnv, torch.Tensor]:
    """Return tables with all tasks and cameras, and actions [num_envs, 4] that they accept."""
    config = TabletopConfig(num_envs=num_envs, tasks=("reach", "push", "pick_place"), image_size=16, wrist_camera=True,
                            front_camera=True, max_episode_steps=8)  # fmt: skip
    return TabletopEnv(config), torch.linspace(-1.0, 1.0, 4).repeat(num_envs, 1)
