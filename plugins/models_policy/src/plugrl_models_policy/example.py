"""Tiny policies with random weights, for the conformance kit. Imports nothing heavy."""

from __future__ import annotations

from typing import Any


def mlp_policy() -> dict[str, Any]:
    """Return the configuration of a policy on states with a Gaussian head and a value head."""
    return {
        "model_type": "mlp_policy", "state_dim": 6, "action_dim": 3, "num_action_chunks": 2, "hidden_sizes": [16, 16],
        "add_value_head": True, "precision": "fp32",
    }  # fmt: skip


def cnn_policy() -> dict[str, Any]:
    """Return the configuration of a policy on images and states with a discrete head and a value head."""
    return {
        "model_type": "cnn_policy", "image_shape": [32, 32], "state_dim": 2, "action_dim": 3, "hidden_sizes": [16],
        "head": "discrete", "num_bins": 5, "add_value_head": True, "precision": "fp32",
    }  # fmt: skip


def states(count: int) -> dict[str, Any]:
    """Return what :func:`mlp_policy` sees in ``count`` scenes."""
    import torch

    return {"states": torch.randn(count, 6, generator=torch.Generator().manual_seed(0))}


def pictures(count: int) -> dict[str, Any]:
    """Return what :func:`cnn_policy` sees in ``count`` scenes."""
    import torch

    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 32, 32, 3), generator=source, dtype=torch.uint8)
    return {"main_images": images, "states": torch.randn(count, 2, generator=source)}
