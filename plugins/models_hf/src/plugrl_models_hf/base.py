"""What policies and value models around a Hugging Face model share: names, files and declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plugrl.models.base import BasePolicy
from plugrl_models_hf.adapter import Adapter, attach, linear_names
from plugrl_models_hf.adapter_files import PART_A, PART_B, PREFIX, merge_into, merged_weight, scale_of
from plugrl_models_hf.config import CausalLMConfig
from plugrl_models_hf.packing import ATTENTION
from plugrl_models_hf.quiet import quiet
from plugrl_models_hf.tokenizer import HFTextProcessor

_PREFIX = "model."


class HFPolicy(BasePolicy):
    """A policy around one Hugging Face model; parameters are published under the names of its checkpoints."""

    def __init__(
        self, model: Any, processor: HFTextProcessor | None = None, adapter: Adapter | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.processor = processor
        self._adapter = adapter
        self._tied = tied_duplicates(model)
        self._packs = False

    def measured(self) -> dict[str, Any]:
        """Whether rows may be packed."""
        return {"packs": self._packs}

    def take_measured(self, values: Mapping[str, Any]) -> None:
        """Pack rows where the same policy with weights does."""
        self._packs = values["packs"]
        if self._packs:
            self.model.set_attn_implementation(ATTENTION)

    def wrap_units(self) -> tuple[str, ...]:
        """Class names of the decoder layers, as the model declares them."""
        return tuple(sorted(self.model._no_split_modules or ()))

    def lora_targets(self) -> tuple[str, ...]:
        """Names of the linear modules inside the decoder layers, such as q_proj and down_proj."""
        if self._adapter is not None:
            return tuple(sorted({path.rpartition(".")[2] for path in self._adapter.layers}))
        return lora_targets(self.model)

    def published_name(self, name: str) -> str | None:
        """Return the Hugging Face name of a parameter or buffer; None for a tied duplicate."""
        name = name.removeprefix(_PREFIX)
        if name in self._tied:
            return None
        return name if self._adapter is None else self._adapter.published(name)

    def is_saved(self, name: str) -> bool:
        """All tensors, or those of the adapter alone."""
        return self._adapter is None or self._adapter.is_own(name)

    def adapter_config(self) -> dict[str, Any] | None:
        """Return the content of ``adapter_config.json``, None without an adapter."""
        return None if self._adapter is None else self._adapter.config()

    def adapter_disabled(self) -> AbstractContextManager[None]:
        """Return the context in which the frozen weights alone compute."""
        return nullcontext() if self._adapter is None else self._adapter.disabled()

    def merged_tensors(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Add the adapter to the weights of its layers as they pass."""
        return iter(tensors) if self._adapter is None else self._adapter.merged(tensors)

    def merge_published(
        self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any], device: torch.device
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Add the matrices of a LoRA adapter to the weights of their layers."""
        scale, modules = scale_of(adapter), dict(self.model.named_modules())
        for name, tensor in tensors.items():
            if name.startswith(PREFIX):
                if not name.endswith((PART_A, PART_B)):  # A module that is trained whole replaces the frozen one.
                    yield name.removeprefix(PREFIX), tensor
                continue
            path = name.removesuffix(".weight")
            part_a, part_b = (tensors.get(f"{PREFIX}{path}{part}") for part in (PART_A, PART_B))
            if part_a is not None and part_b is not None:
                parts = (part.to(device) for part in (tensor, part_a, part_b))
                yield name, merged_weight(*parts, scale, transposed=isinstance(modules[path], Conv1D))
            elif PREFIX + name not in tensors:
                yield name, tensor

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
        if self._adapter is not None:
            self._adapter.save_config(directory)


def lora_targets(model: PreTrainedModel) -> tuple[str, ...]:
    """Return the names of the linear layers inside the decoder layers of a model without an adapter."""
    units = set(model._no_split_modules or ())
    blocks = (block for block in model.modules() if type(block).__name__ in units)
    return tuple(sorted({name for block in blocks for name in linear_names(block)}))


def with_adapter(
    model: PreTrainedModel, cfg: CausalLMConfig, *, task: str, heads: Sequence[str] = ()
) -> Adapter | None:
    """Give the model the adapter that ``cfg`` asks for, or add one to its weights for good; see :func:`attach`."""
    if cfg.lora is None:
        return None
    if cfg.lora.is_merged:
        merge_into(model, str(cfg.lora.path))
        return None
    return attach(model, cfg, lora_targets(model), task=task, heads=heads) if cfg.lora.is_trained else None


def tied_duplicates(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of parameters that are another parameter's tensor and do not stand in checkpoints."""
    declared = set(getattr(model, "all_tied_weights_keys", ()))
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
