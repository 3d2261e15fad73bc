"""LoRA adapters on Hugging Face models: PEFT attaches them in place; names, files and merging are ours.

In place means that no wrapper stands around the model, so that what reaches into it (packing, the head, wrap units)
finds what it finds without an adapter.
"""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.pytorch_utils import Conv1D

from plugrl.config.schema.model import ADAPTER_CONFIG, LoraConfig, ModelConfig
from plugrl.errors import CheckpointError, ConfigError, MissingDependency, one_of
from plugrl_models_hf.adapter_files import PART_A, PART_B, PREFIX, merged_weight, read_config, read_tensors, scale_of

if TYPE_CHECKING:
    import peft

_log = logging.getLogger(__name__)

_NAME = "default"
"""PEFT's name for the only adapter of a model; it stands in the names of parameters, not in files."""

_PUBLISHED = (
    (re.compile(rf"(.*\.lora_[AB])\.{_NAME}\.(.*)"), rf"{PREFIX}\1.\2"),
    (re.compile(rf"(.*)\.modules_to_save\.{_NAME}\.(.*)"), rf"{PREFIX}\1.\2"),
    (re.compile(r"(.*)\.(?:base_layer|original_module)\.(.*)"), r"\1.\2"),
)


_TOLD_OTHERWISE = (".*tie_word_embeddings", "fan_in_fan_out is set to False")
"""Warnings of PEFT about what is an error here, and about what it puts right by itself."""


class Adapter:
    """The adapter of ``model``: what its parameters are called, and what the model is with it and without it."""

    def __init__(self, model: torch.nn.Module, config: peft.LoraConfig, base: str | None) -> None:
        from peft.tuners.lora import LoraLayer
        from peft.utils import ModulesToSaveWrapper

        self._model = model
        self._config = config
        self._base = base
        modules = dict(model.named_modules())
        self.layers = {path: module for path, module in modules.items() if isinstance(module, LoraLayer)}
        self.whole = [path for path, module in modules.items() if isinstance(module, ModulesToSaveWrapper)]
        self._scale = scale_of(config.to_dict())

    # ----------------------------------------------------------------- names
    @staticmethod
    def published(name: str) -> str:
        """Map the name of a parameter of the model to PEFT's where it is the adapter's, else to the plain model's."""
        for pattern, replacement in _PUBLISHED:
            name, count = pattern.subn(replacement, name)
            if count:
                break
        return name

    @staticmethod
    def is_own(published: str) -> bool:
        """Whether the tensor belongs to the adapter rather than to the frozen model."""
        return published.startswith(PREFIX)

    # ----------------------------------------------------------------- with it and without it
    def merged(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Turn the stream of all tensors, full and under published names, into that of the plain model.

        A weight waits for its two matrices, which follow it at once in the order of the model. Raises CheckpointError
        when a part never comes.
        """
        waiting: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors:
            plain = name.removeprefix(PREFIX)
            path, part = self._part(plain)
            if part is None:
                if self.is_own(name) or not plain.startswith(tuple(f"{module}." for module in self.whole)):
                    yield plain, tensor
                continue
            parts = waiting.setdefault(path, {})
            parts[part] = tensor
            if len(parts) == 3:
                del waiting[path]
                transposed = bool(getattr(self.layers[path], "fan_in_fan_out", False))
                weight = merged_weight(
                    parts[".weight"], parts[PART_A], parts[PART_B], self._scale, transposed=transposed
                )
                yield f"{path}.weight", weight
        if waiting:
            raise CheckpointError(f"The adapter of {one_of(sorted(waiting)[:5])} cannot be merged: parts are lacking.")

    def _part(self, plain: str) -> tuple[str, str | None]:
        for part in (PART_A, PART_B, ".weight"):
            path = plain.removesuffix(part)
            if path != plain and path in self.layers:
                return path, part
        return plain, None

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Let the model compute without the adapter inside the context."""
        switched = [*self.layers.values(), *(self._model.get_submodule(path) for path in self.whole)]
        # PEFT's own switch also changes what requires gradients, which sharded and replicated models do not survive.
        for module in switched:
            module._disable_adapters = True
        try:
            yield
        finally:
            for module in switched:
                module._disable_adapters = False

    # ----------------------------------------------------------------- files
    def config(self) -> dict[str, Any]:
        """Return what stands in ``adapter_config.json``."""
        values = {key: _plain(value) for key, value in self._config.to_dict().items()}
        return {**values, "inference_mode": True, "base_model_name_or_path": self._base}

    def save_config(self, directory: str | Path) -> None:
        """Write ``adapter_config.json``."""
        text = json.dumps(self.config(), indent=2, sort_keys=True)
        (Path(directory) / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")

    @torch.no_grad()
    def load(self, folder: str | Path, may_lack: Sequence[str] = ()) -> None:
        """Copy the tensors of an adapter folder in; modules of ``may_lack`` keep what they have when it has none.

        Raises CheckpointError for names or shapes that do not fit.
        """
        stored = read_tensors(folder)
        own = {self.published(name): tensor for name, tensor in self._model.state_dict(keep_vars=True).items()}
        own = {name: tensor for name, tensor in own.items() if self.is_own(name)}
        optional = {name for name in own if name.removeprefix(PREFIX).split(".")[0] in may_lack}
        missing, unknown = own.keys() - stored.keys() - optional, stored.keys() - own.keys()
        if missing or unknown:
            raise CheckpointError(
                f"the adapter in {folder} does not fit the model: {len(missing)} tensors lack "
                f"({', '.join(sorted(missing)[:3])}), {len(unknown)} have no place ({', '.join(sorted(unknown)[:3])})."
            )
        for name, tensor in stored.items():
            if own[name].shape != tensor.shape:
                raise CheckpointError(
                    f"the adapter in {folder} does not fit the model: {name} has shape {list(tensor.shape)}, "
                    f"expected {list(own[name].shape)}."
                )
            own[name].copy_(tensor)


def attach(
    model: torch.nn.Module, cfg: ModelConfig, targets: Sequence[str], *, task: str | None, heads: Sequence[str] = ()
) -> Adapter:
    """Freeze ``model`` and give it the adapter that ``cfg.lora`` describes; its matrices are fp32.

    ``targets``: the layers when the configuration names none. ``heads``: modules that are new to the model, so that
    they are always trained in full. Raises ConfigError when no layer fits, and for a layer whose weight is tied to
    another; CheckpointError for a folder of an adapter that is not one for this model.
    """
    peft = _peft()
    assert cfg.lora is not None
    tied = _tied_modules(model)
    config = _stored(peft, cfg.lora, heads) if cfg.lora.path else _new(peft, model, cfg.lora, targets, task, heads)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            for known in _TOLD_OTHERWISE:
                warnings.filterwarnings("ignore", message=known)
            torch.manual_seed(cfg.seed)
            peft.inject_adapter_in_model(config, model, adapter_name=_NAME)
    except ValueError as error:
        raise ConfigError(f"model.lora.target_modules: {error} {_linear_hint(model)}") from error
    adapter = Adapter(model, config, base_of(cfg))
    for path in (*adapter.layers, *adapter.whole):
        if path in tied:
            raise ConfigError(
                f"model.lora: {path} shares its weight with {one_of(sorted(tied[path] - {path}))}; an adapter on one "
                "of them would part them. Leave it out"
            )
    other = sorted(path for path, layer in adapter.layers.items() if not _is_product(layer.get_base_layer()))
    if other:
        raise ConfigError(
            f"model.lora.target_modules: {one_of(other[:5])} is no linear layer, and an adapter of another kind can be "
            "neither saved nor merged here; modules_to_save trains it in full."
        )
    for layer in adapter.layers.values():
        layer.lora_A.float()
        layer.lora_B.float()
    if cfg.lora.path:
        adapter.load(cfg.lora.path, may_lack=heads)
    return adapter


def base_of(cfg: ModelConfig) -> str | None:
    """Return where the frozen weights lie, as it is written into the adapter's files: absolute where it is a path."""
    if cfg.path is None:
        return None
    file = getattr(cfg, "gguf_file", None)
    text = cfg.path if file is None else f"{cfg.path}/{file}"
    path = os.path.expanduser(text)
    return os.path.abspath(path) if os.path.exists(path) else text


def _new(
    peft: Any, model: torch.nn.Module, lora: LoraConfig, targets: Sequence[str], task: str | None, heads: Sequence[str]
) -> peft.LoraConfig:
    wanted = lora.target_modules if lora.target_modules is not None else tuple(targets)
    if not wanted:
        raise ConfigError(f"model.lora.target_modules: the model declares none; name them. {_linear_hint(model)}")
    if not isinstance(wanted, str):
        _check_names(model, wanted)
    whole = [*lora.modules_to_save, *(head for head in heads if head not in lora.modules_to_save)]
    _check_whole(model, whole)
    return peft.LoraConfig(
        task_type=task,
        r=lora.rank,
        lora_alpha=lora.alpha or lora.rank,
        lora_dropout=lora.dropout,
        target_modules=wanted if isinstance(wanted, str) else sorted(wanted),
        modules_to_save=whole or None,
        init_lora_weights={"default": True, "random": False}.get(lora.init, lora.init),
    )


def _stored(peft: Any, lora: LoraConfig, heads: Sequence[str]) -> peft.LoraConfig:
    """Return the configuration of the adapter at ``lora.path``; ConfigError when the user's rank is another one."""
    assert lora.path is not None
    content = read_config(lora.path)
    if "rank" in lora.model_fields_set and lora.rank not in (0, content.get("r", 8)):
        raise ConfigError(f"model.lora.rank: {lora.rank}, but the adapter in {lora.path} has {content.get('r', 8)}.")
    config = peft.LoraConfig.from_pretrained(str(lora.path))
    config.inference_mode = False
    config.modules_to_save = sorted({*(config.modules_to_save or ()), *heads}) or None
    if "dropout" in lora.model_fields_set:
        config.lora_dropout = lora.dropout
    return config


def _check_names(model: torch.nn.Module, wanted: Sequence[str]) -> None:
    paths = [path for path, _ in model.named_modules()]
    lost = [name for name in wanted if not any(path == name or path.endswith(f".{name}") for path in paths)]
    if len(lost) == len(wanted):
        raise ConfigError(f"model.lora.target_modules: the model has no {one_of(lost)}. {_linear_hint(model)}")
    if lost:
        _log.warning("model.lora.target_modules: the model has no %s; the others get an adapter", one_of(lost))


def _check_whole(model: torch.nn.Module, names: Sequence[str]) -> None:
    paths = [path for path, _ in model.named_modules() if path]
    for name in names:
        if not any(path == name or path.endswith(f".{name}") for path in paths):
            leaves = sorted({path.rpartition(".")[2] for path in paths if not path.rpartition(".")[2].isdigit()})
            raise ConfigError(f"model.lora.modules_to_save: the model has no {name!r}. It has {one_of(leaves)}.")


def linear_names(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the last parts of the names of linear layers, sorted."""
    linear = (path for path, child in module.named_modules() if isinstance(child, torch.nn.Linear))
    return tuple(sorted({path.rpartition(".")[2] for path in linear}))


def _is_product(layer: torch.nn.Module) -> bool:
    """Whether the layer multiplies with one matrix: linear, or transformers' Conv1D with its matrix transposed."""
    return isinstance(layer, torch.nn.Linear | Conv1D)


def _linear_hint(model: torch.nn.Module) -> str:
    return f"Its linear layers are {one_of(linear_names(model))}."


def _tied_modules(model: torch.nn.Module) -> dict[str, set[str]]:
    """Map each module that shares a parameter to all modules that share it."""
    owners: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), set()).add(name.rpartition(".")[0])
    return {path: paths for paths in owners.values() if len(paths) > 1 for path in paths}


def _plain(value: Any) -> Any:
    """Return a JSON value that does not depend on the order of a set."""
    if isinstance(value, set):
        return sorted(value)
    return value.value if isinstance(value, Enum) else value


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingDependency(f"model.lora: adapters need PEFT ({error}). Run: pip install peft") from error
    return peft
