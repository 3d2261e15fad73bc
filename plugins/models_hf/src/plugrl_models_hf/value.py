"""The value model ``causal_lm_value``: a Hugging Face backbone with one output per token.

It is the family's own token-classification model with one label, so that transformers loads what is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForTokenClassification, PreTrainedModel

from plugrl.errors import ConfigError
from plugrl.models.factory import resolve_dtype
from plugrl_models_hf.adapter import Adapter
from plugrl_models_hf.base import HFPolicy, prepare, with_adapter
from plugrl_models_hf.config import resolve_config
from plugrl_models_hf.layout import TextLayout
from plugrl_models_hf.loading import load_model, random_model
from plugrl_models_hf.packing import enable_packing, packed
from plugrl_models_hf.tokenizer import HFTextProcessor, build_processor

# Dropout would make the value of a state depend on the draw, not on the state.
_HEAD = {"num_labels": 1, "classifier_dropout": 0.0}
_HEAD_MODULES = ("score", "classifier")


class CausalLMValue(HFPolicy):
    """Values of the states before each response token."""

    def __init__(
        self,
        model: PreTrainedModel,
        processor: HFTextProcessor | None = None,
        *,
        adapter: Adapter | None = None,
        remove_padding: bool = True,
    ) -> None:
        super().__init__(model, processor, adapter)
        self._packs = remove_padding and enable_packing(model, self._states)

    def capabilities(self) -> frozenset[str]:
        """Values only."""
        return frozenset({"values"})

    def critic_parameters(self) -> tuple[str, ...]:
        """Names of the parameters outside the backbone."""
        backbone = f"model.{self.model.base_model_prefix}."
        return tuple(name for name, _ in self.named_parameters() if not name.startswith(backbone))

    def default_forward(
        self, forward_inputs: Mapping[str, Any], *, compute_values: bool = True, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Return ``values`` fp32 [B, T]: of the state before response token t, zero where ``response_mask`` is.

        Options of other forwards (temperature, entropy) do not matter here and are accepted.
        """
        layout = TextLayout.trim(forward_inputs)
        layout = packed(layout) if self._packs else layout
        scores = self._scores(layout.model_inputs()).squeeze(-1)
        return {"values": layout.spread(layout.predictors(scores).float())}

    def _scores(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the head's outputs [rows, columns, 1]."""
        return self.model(**inputs).logits

    def _states(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Return the states that the backbone hands to the head, which may still be zero."""
        states: list[torch.Tensor] = []
        handle = self.model.base_model.register_forward_hook(lambda _, __, output: states.append(output[0]))
        try:
            self._scores(inputs)
        finally:
            handle.remove()
        return states[0]


def build_causal_lm_value(cfg: Any, torch_dtype: torch.dtype | None = None) -> CausalLMValue:
    """Build the value model that ``model:`` describes. A head that the weights lack starts at zero.

    Raises ConfigError for a family that has no token-classification model in transformers.
    """
    config = resolve_config(cfg)
    dtype = resolve_dtype(torch_dtype or config.precision)
    processor = build_processor(config)
    try:
        if config.path is None:
            model = random_model(AutoModelForTokenClassification, config, dtype, processor.tokenizer, **_HEAD)
            missing = {name for name, _ in model.named_parameters()}
        else:
            model, missing = load_model(
                AutoModelForTokenClassification, config, dtype, new_modules=_HEAD_MODULES, **_HEAD
            )
    except ValueError as error:
        if "Unrecognized configuration class" in str(error):
            raise ConfigError(f"model.model_type: this family has no value model in transformers: {error}") from error
        raise
    zero_head(model, missing)
    prepare(model, gradient_checkpointing=config.enable_gradient_checkpointing)
    heads = [name for name in _HEAD_MODULES if hasattr(model, name)]
    adapter = with_adapter(model, config, task="TOKEN_CLS", heads=heads)
    return CausalLMValue(model, processor, adapter=adapter, remove_padding=config.use_remove_padding)


def zero_head(model: PreTrainedModel, names: set[str]) -> None:
    """Set the named parameters outside the backbone to zero, so that training starts from values of zero."""
    backbone = f"{model.base_model_prefix}."
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in names and not name.startswith(backbone):
                parameter.zero_()
