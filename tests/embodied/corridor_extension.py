"""An extension module: a corridor to walk in, one that loses its simulator, and a model of somebody's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plugrl.envs import register_env
from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.envs.config import EnvParams
from plugrl.models import register_model
from plugrl.models.base import BasePolicy
from plugrl.testing.corridor import Corridor


class LossyParams(EnvParams):
    """Which simulator dies."""

    dies_at: int = -1
    """Chunk, counted from 1 since the environment was built, at which scene 0 loses its simulator."""


class LossyCorridor(Corridor):
    """A corridor whose first scene loses its simulator once."""

    def __init__(self, params: LossyParams) -> None:
        super().__init__(params)
        self.dies_at, self.chunks = params.dies_at, 0

    def chunk_step(self, actions: Tensor) -> ChunkResult:
        """Step, and let the first scene look as if its simulator had died at that chunk."""
        self.chunks += 1
        result = super().chunk_step(actions)
        if self.chunks != self.dies_at:
            return result
        record = self.book.record(0).drop()
        obs, _ = self.reset(indices=[0])
        lost = torch.zeros(self.num_envs, dtype=torch.bool)
        lost[0] = True
        quiet = {name: getattr(result, name).clone() for name in ("rewards", "terminations", "truncations", "executed")}
        for tensor in quiet.values():
            tensor[0] = 0
        others = tuple(item for item in result.episodes if item.index != 0)
        return replace(result, obs=obs, lost=lost, episodes=(*others, record), **quiet)


class Walker(BasePolicy):
    """The smallest policy that can walk: one mean, whatever it sees. It knows none of the usual keywords."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1))
        self.unused = nn.Linear(1, hidden_size)

    def predict_action_batch(  # type: ignore[override]
        self, env_obs: Mapping[str, Any], mode: str = "train", compute_values: bool = True
    ) -> tuple[Any, dict[str, Any]]:
        """Return actions [N, 1], flat."""
        states = env_obs["states"]
        noise = torch.randn(len(states), 1) if mode == "train" else torch.zeros(len(states), 1)
        actions = self.mean.detach() + noise
        inputs = {"states": states, "action": actions}
        return actions, {"prev_logprobs": self.default_forward(inputs)["logprobs"].detach(), "forward_inputs": inputs}

    def default_forward(self, forward_inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``logprobs`` [B, 1], flat, and nothing else."""
        away = forward_inputs["action"] - self.mean + 0.0 * self.unused(forward_inputs["states"]).sum(-1, keepdim=True)
        return {"logprobs": -0.5 * away.square()}

    def sft_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Imitate ``action``."""
        return {"losses": (forward_inputs["action"].reshape(-1, 1) - self.mean).square().sum(-1)}

    def wrap_units(self) -> tuple[str, ...]:
        """The linear layer."""
        return ("Linear",)

    def save_config(self, directory: str | Path) -> None:
        """Write the width."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "config.json").write_text(json.dumps({"hidden_size": self.unused.out_features}))


def build_walker(cfg: Any, torch_dtype: torch.dtype | None) -> Walker:
    """Build the policy; ``cfg.hidden_size`` is a key of its own, for which there is no schema."""
    policy = Walker(cfg.hidden_size)
    if cfg.path is not None:
        from safetensors.torch import load_file

        policy.load_published(load_file(Path(cfg.path) / "model.safetensors").items())
    return policy.to(torch_dtype)


def register() -> None:
    """Register environments and models; one takes the place of a built-in."""
    register_env("corridor", schema=EnvParams)(_corridor)
    register_env("lossy_corridor", schema=LossyParams)(LossyCorridor)
    register_model("walker", build_walker, category="embodied")
    register_model("cnn_policy", build_walker, category="embodied", force=True)


def _corridor(params: EnvParams) -> VecEnv:
    return Corridor(params)
