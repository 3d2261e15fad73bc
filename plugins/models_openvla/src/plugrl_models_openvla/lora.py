"""Adapters: which layers get one by default, and how one is attached."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plugrl_models_hf.adapter import Adapter, attach
from plugrl_models_hf.adapter_files import merge_into
from plugrl_models_openvla.config import OpenVLAConfig
from plugrl_models_openvla.model import OpenVLAModel

TARGETS = (
    "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "projector.fc1", "projector.fc2", "projector.fc3",
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head",
)  # fmt: skip
"""The linear layers of everything that is computed with; the patches' convolution has no adapter."""


def default_targets(model: OpenVLAModel) -> str:
    """Return a regular expression for the paths of :data:`TARGETS` but for those in the towers' unused parts."""
    backbone = model.vision_backbone
    towers = [
        rf"vision_backbone\.{name}\.blocks\.(?:{'|'.join(map(str, range(len(tower.blocks) - 1)))})\..*"
        for name, tower in zip(("featurizer", "fused_featurizer"), backbone.towers, strict=False)
        if len(tower.blocks) > 1
    ]
    places = "|".join([*towers, r"language_model\..*", ""])
    return rf"(?:{places})(?:{'|'.join(re.escape(name) for name in TARGETS)})"


def with_adapter(
    model: OpenVLAModel, config: OpenVLAConfig, heads: Sequence[str] = ("value_head",)
) -> Adapter | None:
    """Give the model the adapter that ``config.lora`` describes, or add one to its weights for good.

    Those of ``heads`` that the model has are trained in full beside it.
    """
    lora = config.lora
    if lora is None:
        return None
    if lora.is_merged:
        merge_into(model, str(lora.path))
        return None
    if not lora.is_trained:
        return None
    if lora.target_modules is None and lora.path is None:
        lora = lora.model_copy(update={"target_modules": default_targets(model)})
    heads = [name for name in heads if hasattr(model, name)]
    return attach(model, config.model_copy(update={"lora": lora}), TARGETS, task=None, heads=heads)
