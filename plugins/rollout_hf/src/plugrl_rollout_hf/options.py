"""`rollout.options:` of the backend `hf`. Light: pydantic only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plugrl.config.schema.base import Section


class HFRolloutOptions(Section):
    """How the model is run while it generates."""

    decoder: Literal["auto", "fused", "transformers"] = "auto"
    """`fused` steps a copy of the weights laid out for decoding, `transformers` the model's own forward; `auto` is
    `fused` for the families it knows, once it was seen to give the same numbers."""

    pack_weights: bool = True
    """Keep large matrices of the fused decoder in the layout the processor's library multiplies fastest."""

    compact_at: float = Field(0.125, gt=0, le=1)
    """Share of finished rows at which they leave the batch."""
