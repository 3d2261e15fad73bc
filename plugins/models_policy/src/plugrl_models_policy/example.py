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
