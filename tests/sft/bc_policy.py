"""A small policy that clones behaviour, and a data set that fails when it is told to; an extension module."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from plugrl.config.schema import ModelConfig
from plugrl.data.registry import DATASETS, register_dataset
from plugrl.data.samples import SampleSplits
from plugrl.models import MODELS, register_model
from plugrl.models.base import BasePolicy


class BcConfig(ModelConfig):
    """Sizes of the policy."""

    model_type: str = "bc_mlp"
    """Registered name."""

    state_size: int = 2
    """Numbers of the state."""

    action_size: int = 2
    """Numbers of an action."""

    chunk_size: int = 4
    """Actions that are predicted at once."""

    width: int = 32
    """Hidden width."""

    dropout: float = 0.0
    """Dropped share of the hidden units."""


class Block(nn.Module):
    """A hidden layer with a residual."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden values [B, width]."""
        return hidden + self.dropout(torch.nn.functional.gelu(self.linear(hidden)))


class BcMlp(BasePolicy):
    """From ``observation.state`` [B, S] to a chunk of actions [B, T, A], by the mean squared error."""

    def __init__(self, config: BcConfig) -> None:
        super().__init__()
        self.config = config
        torch.manual_seed(config.seed)
        self.first = nn.Linear(config.state_size, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.dropout) for _ in range(2))
        self.last = nn.Linear(config.width, config.chunk_size * config.action_size)

    def wrap_units(self) -> tuple[str, ...]:
        """The blocks."""
        return ("Block",)

    def default_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the predicted ``actions`` [B, T, A]."""
        hidden = self.first(forward_inputs["observation.state"])
        for block in self.blocks:
            hidden = block(hidden)
        chunk = (-1, self.config.chunk_size, self.config.action_size)
        return {"actions": self.last(hidden).reshape(chunk)}

    def sft_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the loss of each sample, without what lies beyond the end of its episode."""
        predicted = self.default_forward(forward_inputs)["actions"]
        inside = ~forward_inputs["action_is_pad"]
        error = (predicted - forward_inputs["action"]).square().mean(-1) * inside
        losses = error.sum(1) / inside.sum(1)
        return {"losses": losses, "metrics": {"mse": losses.detach().mean(), "note": "a text", "flag": True}}

    def save_config(self, directory: str | Path) -> None:
        """Write the sizes."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        (Path(directory) / "config.json").write_text(json.dumps(self.config.model_dump(mode="json")))


def build(config: Any, torch_dtype: torch.dtype | None) -> BcMlp:
    """Build the policy, with the weights of ``path`` if there is one."""
    settings = config if isinstance(config, BcConfig) else BcConfig(**dict(config))
    policy = BcMlp(settings)
    if settings.path:
        policy.load_published(load_file(Path(settings.path) / "model.safetensors").items())
    return policy.to(torch_dtype)


class Numbers:
    """Samples whose every number is their own; one rank's reading of them can be made to fail."""

    def __init__(self, count: int, fail_rank: int, fail_at: int) -> None:
        self.count, self.fail_rank, self.fail_at = count, fail_rank, fail_at
        self.reads = 0

    def __len__(self) -> int:
        return self.count

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the samples."""
        self.reads += 1
        if self.reads == self.fail_at and int(os.environ.get("RANK", "0")) == self.fail_rank:
            raise OSError("the disk of this rank is gone")
        states = torch.tensor([[row, -row] for row in rows], dtype=torch.float32) / self.count
        actions = states.unsqueeze(1).repeat(1, 4, 1)
        return {"observation.state": states, "action": actions, "action_is_pad": torch.zeros(len(rows), 4).bool()}


def register() -> None:
    """Register the policy and the data set."""
    if "bc_mlp" not in MODELS:
        register_model("bc_mlp", build, category="embodied", schema=BcConfig)
    if "numbers" not in DATASETS:

        @register_dataset("numbers")
        def numbers(config: Any, *, count: int = 24, fail_rank: int = -1, fail_at: int = 0) -> SampleSplits:
            return SampleSplits(train=Numbers(count, fail_rank, fail_at), val=Numbers(5, -1, 0))
