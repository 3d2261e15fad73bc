"""The policy that an engine holds: this rank's stages, and what the Hugging Face model says of names and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from plugrl.errors import UnsupportedCapability
from plugrl.models.base import BasePolicy


class MegatronPolicy(BasePolicy):
    """What this rank computes of a policy. ``outline``: the whole policy without weights."""

    def __init__(self, stages: Sequence[torch.nn.Module], outline: Any) -> None:
        super().__init__()
        self.stages = torch.nn.ModuleList(stages)
        self._outline = (outline,)  # a tuple, so that it is no part of this module

    @property
    def outline(self) -> Any:
        """The whole policy without weights."""
        return self._outline[0]

    def default_forward(self, forward_inputs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Raise UnsupportedCapability: stages compute by the engine's schedule alone."""
        raise UnsupportedCapability("A part of a model computes by its engine's infer_batch and train_batch alone.")

    def capabilities(self) -> frozenset[str]:
        """What the whole policy gives for training."""
        found: frozenset[str] = self.outline.capabilities()
        return found

    def save_config(self, directory: str | Path) -> None:
        """Write configuration and tokenizer."""
        self.outline.save_config(directory)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the whole model, by its published name, in the model's order."""
        found: dict[str, tuple[int, ...]] = {}
        for name, tensor in self.outline.named_parameters():
            published = self.outline.published_name(name)
            if published is not None:
                found.setdefault(published, tuple(tensor.shape))
        return found
