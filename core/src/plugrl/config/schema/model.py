"""`model:`: the policy. A plugin extends :class:`ModelConfig` by the keys of its model type."""

from __future__ import annotations

from typing import Literal, Self

from plugrl.config.schema.base import Section

Precision = Literal["auto", "fp32", "bf16", "fp16"]
"""A floating-point type; `auto` asks the platform which one it is fast in."""


class ModelConfig(Section):
    """The keys that every model type understands; a model's own schema is a subclass."""

    model_type: str = "causal_lm"
    """Registered name of the model type."""

    path: str | None = None
    """Folder (or published name) of the pre-trained weights; null builds random ones where the model type can."""

    precision: Precision = "auto"
    """Type of the parameters in forward passes; `auto` is what the platform is fast in."""

    trust_remote_code: bool = False
    """Run code that comes with the weights. Refused by default."""

    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""

    seed: int = 0
    """Seed of random initial weights."""

    def from_folder(self, folder: str) -> Self:
        """Return the same settings with the weights of ``folder``, a model folder that a checkpoint holds."""
        return self.model_copy(update={"path": folder})
