"""Tiny policies and observations for the tests of this folder."""

from __future__ import annotations

from typing import Any

import torch

from plugrl_models_openvla.example import openvla
from plugrl_models_openvla.policy import OpenVLAPolicy, build_openvla

TASKS = ("push the red block", "pick up the ball", "push the blue ball to the green goal")


def make_policy(**keys: Any) -> OpenVLAPolicy:
    """A tiny policy in eval mode; keywords go over the keys of its section."""
    return build_openvla({**openvla(), **keys}).eval()


def observe(rows: int = 6, seed: int = 0, side: int = 20) -> dict[str, Any]:
    """Observations of ``rows`` scenes: images of noise, and instructions of different lengths."""
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (rows, side, side, 3), dtype=torch.uint8, generator=source)
    return {"main_images": images, "task_descriptions": [TASKS[row % len(TASKS)] for row in range(rows)]}


def draws(
    policy: OpenVLAPolicy, obs: Any, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, *,
    seed: int = 0, mode: str = "train",
) -> tuple[torch.Tensor, dict[str, Any]]:  # fmt: skip
    """What the policy does with a generator of its own."""
    source = torch.Generator().manual_seed(seed)
    return policy.predict_action_batch(obs, mode, temperature=temperature, top_k=top_k, top_p=top_p, generator=source)


def published(policy: OpenVLAPolicy) -> dict[str, torch.Tensor]:
    """The tensors of a policy by their published names."""
    named = {policy.published_name(name): tensor for name, tensor in policy.state_dict().items()}
    return {name: tensor for name, tensor in named.items() if name is not None}
