"""What policies and value models around a Hugging Face model share: names, files and declarations."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from plugrl.models.base import BasePolicy
from plugrl_models_hf.quiet import quiet
from plugrl_models_hf.tokenizer import HFTextProcessor

_PREFIX = "model."


class HFPolicy(BasePolicy):
    """A policy around one Hugging Face model; parameters are published under the names of its checkpoints."""

    def __init__(self, model: PreTrainedModel, processor: HFTextProcessor | None = None) -> None:
        super().__init__()
        self.model = model
        self.processor = processor
        self._tied = tied_duplicates(model)

    def wrap_units(self) -> tuple[str, ...]:
        """Class names of the decoder layers, as the model declares them."""
        return tuple(sorted(self.model._no_split_modules or ()))

    def lora_targets(self) -> tuple[str, ...]:
        """Names of the linear modules inside the decoder layers, such as q_proj and down_proj."""
        units = set(self.wrap_units())
        blocks = (block for block in self.model.modules() if type(block).__name__ in units)
        linear = {
            name.rpartition(".")[2]
            for block in blocks
            for name, module in block.named_modules()
            if isinstance(module, torch.nn.Linear)
        }
        return tuple(sorted(linear))

    def published_name(self, name: str) -> str | None:
        """Return the Hugging Face name of a parameter or buffer; None for a tied duplicate."""
        name = name.removeprefix(_PREFIX)
        return None if name in self._tied else name

    def save_config(self, directory: str | Path) -> None:
        """Write configuration, generation settings and tokenizer, as the model's own ``save_pretrained`` does."""
        model = self.model
        model.config.dtype = str(model.dtype).removeprefix("torch.")
        # Sharding gives the class another name in front.
        model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
        with quiet():
            model.config.save_pretrained(str(directory))
            if model.can_generate() and model.generation_config is not None:
                model.generation_config.save_pretrained(str(directory))
        if self.processor is not None:
            self.processor.save_pretrained(directory)


def tied_duplicates(model: PreTrainedModel) -> frozenset[str]:
    """Return the names of parameters that are another parameter's tensor and do not stand in checkpoints."""
    declared = set(model.all_tied_weights_keys)
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    duplicates: set[str] = set()
    for names in groups.values():
        kept = next((name for name in names if name not in declared), names[0])
        duplicates.update(name for name in names if name != kept)
    return frozenset(duplicates)


def prepare(model: PreTrainedModel, *, gradient_checkpointing: bool) -> None:
    """Put a freshly built model into the state training starts from; it acts through its own caches, not HF's."""
    model.train()
    if gradient_checkpointing:
        # Newer transformers rename it and warn about the old name.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
