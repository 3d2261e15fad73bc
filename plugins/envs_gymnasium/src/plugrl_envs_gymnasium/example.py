"""A small environment for the conformance kit."""

from __future__ import annotations

from typing import Any


def env(num_envs: int) -> tuple[Any, Any]:
    """Return the cart with its pole, and actions that let it fall."""
    import torch

    from plugrl.envs.gymnasium import GymnasiumParams, build

    actions = torch.arange(num_envs, dtype=torch.float32)[:, None] % 2
    return build(GymnasiumParams(num_envs=num_envs, id="CartPole-v1")), actions
