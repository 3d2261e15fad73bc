"""Tiny models with random weights, for the conformance kit and for tests. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = ("push", "pick up", "the", "red", "green", "blue", "block", "ball", "to", "goal")


def tiny_config(action_dim: int = 3, *, fused: bool = True) -> dict[str, Any]:
    """Return the content of a ``config.json``: 4 patches, two layers, 16 action bins, statistics of one data set."""
    tower = {"embed_dim": 16, "depth": 3, "num_heads": 2, "image_size": 16, "patch_size": 8}
    scale = [0.5 + 0.25 * index for index in range(action_dim)]
    return {
        "vision_backbone_id": "dinosiglip-vit-so-224px" if fused else "siglip-vit-so400m",
        "vision_overrides": [tower] * (2 if fused else 1),
        "n_action_bins": 16,
        "pad_to_multiple_of": 8,
        "text_config": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "initializer_range": 0.2,
        },
        "norm_stats": {
            "toy": {
                "action": {
                    "q01": [-value for value in scale],
                    "q99": scale,
                    "mask": [True] * (action_dim - 1) + [False],
                }
            }
        },
    }


def openvla(action_dim: int = 3, *, fused: bool = True) -> dict[str, Any]:
    """Return the section ``model:`` of a policy with a value head."""
    return {
        "model_type": "openvla",
        "config": tiny_config(action_dim, fused=fused),
        "tokenizer": {"type": "words", "words": list(WORDS)},
        "action_dim": action_dim,
        "max_prompt_length": 12,
        "add_value_head": True,
        "value_head_sizes": [32, 16],
        "precision": "fp32",
        "seed": 0,
    }


def openvla_oft(action_dim: int = 3) -> dict[str, Any]:
    """Return the same model with chunks of two actions in one pass."""
    return {**openvla(action_dim), "model_type": "openvla_oft", "num_action_chunks": 2}


def observations(count: int) -> dict[str, Any]:
    """Return what either policy sees in ``count`` scenes: pictures, and instructions of different lengths."""
    import torch

    images = torch.randint(0, 256, (count, 24, 20, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    tasks = ("push the red block", "pick up the blue ball", "push the green ball to the goal")
    return {"main_images": images, "task_descriptions": [tasks[index % len(tasks)] for index in range(count)]}


def write_folder(folder: str | Path, **changes: Any) -> Mapping[str, Any]:
    """Write a checkpoint folder with random weights; returns the section ``model:`` that loads it.

    ``changes`` go over the keys of :func:`openvla`.
    """
    from plugrl_models_openvla.policy import build_openvla

    section = {**openvla(), **changes}
    policy = build_openvla(section)
    published = {policy.published_name(name): tensor for name, tensor in policy.state_dict().items()}
    policy.save_pretrained(folder, {name: tensor for name, tensor in published.items() if name is not None})
    kept = {key: value for key, value in section.items() if key not in ("config", "tokenizer")}
    return {**kept, "path": str(folder)}
