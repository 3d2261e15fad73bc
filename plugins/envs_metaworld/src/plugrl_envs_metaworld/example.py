"""A small environment for the conformance kit."""

from __future__ import annotations

from typing import Any


def env(num_envs: int) -> tuple[Any, Any]:
    """Return reach with short episodes, and actions for it."""
    import torch

    from plugrl_envs_metaworld.config import MetaworldParams
    from plugrl_envs_metaworld.env import MetaworldEnv

    made = MetaworldEnv(MetaworldParams(num_envs=num_envs, max_episode_steps=9))
    return made, torch.linspace(-0.8, 0.8, num_envs * 4).reshape(num_envs, 4)
