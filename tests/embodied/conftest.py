"""Runs in environments: one in this process alone, for what does not need Ray, and what real runs are made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from plugrl.config import RunConfig, load_config
from plugrl.plugins import load_plugins
from plugrl.testing.ray_fixture import ray_session

__all__ = ["ray_session"]

sys.path.insert(0, str(Path(__file__).parent))

CORRIDOR: dict[str, Any] = {
    "model": {
        "model_type": "mlp_policy", "state_dim": 1, "action_dim": 1, "add_value_head": True, "hidden_sizes": [32, 32],
        "init_std": 0.5, "precision": "fp32",
    },
    "env": {
        "train": {"env_type": "corridor", "total_num_envs": 32, "max_episode_steps": 8,
                  "max_steps_per_rollout_epoch": 16},
        "eval": {"total_num_envs": 16},
    },
    "actor": {"ppo_mini_batch_size": 128, "ppo_epochs": 4, "optim": {"lr": 3e-3}},
    "algorithm": {"gamma": 0.99, "lam": 0.95},
    "rollout": {"pipeline_stage_num": 2},
    "trainer": {"total_training_steps": 10},
}  # fmt: skip


@pytest.fixture(scope="session")
def corridor_registered() -> Iterator[None]:
    """The corridor, and no other of the extension's parts: built-ins stay what they are."""
    import corridor_extension

    from plugrl.envs import register_env
    from plugrl.envs.registry import ENVS

    load_plugins(quiet=True)
    torch.set_num_threads(1)
    if "corridor" not in ENVS:
        register_env("corridor", schema=corridor_extension.EnvParams)(corridor_extension._corridor)
        register_env("lossy_corridor", schema=corridor_extension.LossyParams)(corridor_extension.LossyCorridor)
    yield


@pytest.fixture
def corridor(tmp_path: Path, corridor_registered: None) -> Any:
    """A function that loads the corridor's configuration with changes."""

    def load(*overrides: str) -> RunConfig:
        path = tmp_path / "corridor.yaml"
        path.write_text(yaml.safe_dump(CORRIDOR))
        return load_config(path, [f"trainer.default_local_dir={tmp_path / 'run'}", *overrides])

    return load
