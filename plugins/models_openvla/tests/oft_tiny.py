"""A tiny OpenVLA-OFT with random weights, its observations, and the published sets that its numbers are compared to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file

from plugrl.testing.reference import golden_folder
from plugrl_models_openvla.oft_policy import OpenVLAOFTPolicy, build_openvla_oft

TASKS = ("push the red cube", "push the blue ball now", "pick")
WORDS = ("push", "pick", "the", "red", "blue", "cube", "ball", "now")
CHUNKS, DIM = 3, 2


def section(**keys: Any) -> dict[str, Any]:
    """Return a `model:` section; images of 8 pixels make 4 patches, and there are 16 action tokens."""
    tower = {"embed_dim": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32, "patch_size": 4}
    config = {
        "vision_backbone_id": "dinosiglip-vit-so-224px",
        "image_sizes": [8, 8],
        "vision_overrides": [tower, tower],
        "n_action_bins": 16,
        "pad_to_multiple_of": 4,
        "text_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                        "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.2},
    }  # fmt: skip
    stats = {
        "action": {"q01": [-2.0, 0.0], "q99": [2.0, 1.0], "min": [-3.0, -1.0], "max": [3.0, 2.0],
                   "mask": [True, False]},
        "proprio": {"q01": [-1.0] * 5, "q99": [3.0] * 5, "min": [-2.0] * 5, "max": [4.0] * 5},
    }  # fmt: skip
    return {
        "model_type": "openvla_oft",
        "config": config,
        "tokenizer": {"type": "words", "words": list(WORDS)},
        "norm_stats": {"toy": stats},
        "action_dim": DIM,
        "num_action_chunks": CHUNKS,
        "max_prompt_length": 12,
        "add_value_head": True,
        "value_head_sizes": [16, 8],
        "precision": "fp32",
        "seed": 3,
        **keys,
    }


def policy(**keys: Any) -> OpenVLAOFTPolicy:
    """Return the policy of a section; keys of a section that is built from a folder leave the others out."""
    values = section(**keys)
    if values.get("path") is not None:
        values = {**values, "config": None, **{"norm_stats": keys.get("norm_stats")}}
    return build_openvla_oft(values, torch.float32)


def observations(rows: int = 3, cameras: int = 1, seed: int = 0) -> dict[str, Any]:
    """Return what an environment of ``rows`` scenes shows, from images of another size than the model's."""
    source = torch.Generator().manual_seed(seed)

    def images(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, (rows, *shape, 11, 9, 3), generator=source).to(torch.uint8)

    found = {"main_images": images(), "states": torch.randn(rows, 5, generator=source)}
    if cameras > 1:
        found["wrist_images"] = images()
    if cameras > 2:
        found["extra_view_images"] = images(cameras - 2)
    return {**found, "task_descriptions": [TASKS[row % len(TASKS)] for row in range(rows)]}


class Prepared:
    """Stands for an image plan where pixel values are given as they go into the model."""

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return what is given."""
        return pixels


def published(name: str, **keys: Any) -> tuple[OpenVLAOFTPolicy, dict[str, torch.Tensor]]:
    """Return the policy of a published set, and what published code answers for it."""
    folder = golden_folder() / name
    values = {"path": str(folder), "tokenizer": {"type": "words", "words": ["a"]}, "unnorm_key": "libero_spatial"}
    found = build_openvla_oft({**values, **keys}, torch.float32)
    found.parts = replace(found.parts, images=Prepared())  # type: ignore[arg-type]
    return found, load_file(folder / "expected.safetensors")
