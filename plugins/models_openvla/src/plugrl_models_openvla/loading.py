"""Building the model: with the weights of a checkpoint, strictly by name and shape, or with random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from plugrl.errors import CheckpointError
from plugrl_models_openvla.config import OpenVLAConfig
from plugrl_models_openvla.folder import Folder
from plugrl_models_openvla.folder_config import FolderConfig
from plugrl_models_openvla.model import OpenVLAModel
from plugrl_models_openvla.value_head import ValueHead
from plugrl_models_openvla.weight_files import StoredTensor, WeightFiles

VALUE_HEAD = "value_head."
_SHOWN = 5

Config = TypeVar("Config", bound=OpenVLAConfig)
Model = TypeVar("Model", bound=OpenVLAModel)
Heads = dict[str, nn.Module]
"""Modules beside the published model, by attribute."""


def value_heads(folder: FolderConfig, config: OpenVLAConfig, outputs: int = 1) -> Heads:
    """Return the value head where the configuration asks for one."""
    if not config.add_value_head:
        return {}
    hidden = folder.text_config.hidden_size
    return {"value_head": ValueHead(hidden, config.value_head_sizes, outputs, config.value_head_activation)}


def build_model(
    folder: Folder,
    config: Config,
    dtype: torch.dtype,
    *,
    make: Callable[..., Model] = OpenVLAModel,  # type: ignore[assignment]
    heads: Callable[[FolderConfig, Config], Heads] = value_heads,
) -> Model:
    """Return the model on the CPU with the weights of ``folder``, or random ones from ``config.seed``.

    ``make(config.json, attention=, **heads)`` makes the model, ``heads`` what stands beside the published one: a head
    that the weights lack is drawn from the seed as well. Under ``torch.device("meta")`` the model comes without
    weights. Parts that only stand in checkpoints are frozen. Raises CheckpointError for weights that do not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        # What stands beside the published model has random weights where the files bring none.
        beside = heads(folder.config, config)
        if folder.weights is None or torch.get_default_device().type == "meta":
            model = make(folder.config, attention=config.attn_implementation, **beside)
            model.initialise()
        else:
            with torch.device("meta"):
                model = make(folder.config, attention=config.attn_implementation, **beside)
            load_weights(model, folder.weights, dtype, tuple(f"{name}." for name in beside) or (VALUE_HEAD,))
    _cast(model, dtype)
    for tower in model.vision_backbone.towers:
        for part in tower.unused():
            part.requires_grad_(False)
    return model


def load_weights(
    model: nn.Module, files: WeightFiles, dtype: torch.dtype, may_lack: tuple[str, ...] = (VALUE_HEAD,)
) -> None:
    """Put the tensors of ``files`` into a model that has no memory for them, in ``dtype``.

    Only heads, what begins with a prefix of ``may_lack`` and has memory, may be missing, each as a whole. Raises
    CheckpointError that names the missing, the unknown, and those of another shape, before any is read.
    """
    stored = files.specs()
    check_names(files, stored, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, may_lack)
    for name, tensor in files.tensors():
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, last)
        # A copy, since what is read may lie in a mapped file that changes.
        value = tensor.to(dtype) if tensor.dtype != dtype else tensor.clone()
        setattr(module, last, nn.Parameter(value, requires_grad=old.requires_grad))


def check_names(
    files: WeightFiles,
    stored: Mapping[str, StoredTensor],
    wanted: Mapping[str, tuple[int, ...]],
    may_lack: tuple[str, ...] = (VALUE_HEAD,),
) -> None:
    """Raise CheckpointError unless ``stored`` has the names and shapes that are wanted."""
    needed = set(wanted)
    for prefix in may_lack:
        head = {name for name in wanted if name.startswith(prefix)}
        if not head & stored.keys():  # It comes whole or not at all.
            needed -= head
    missing = sorted(needed - stored.keys())
    unknown = sorted(stored.keys() - wanted.keys())
    wrong = [
        f"{name} {list(stored[name].shape)} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    ]
    problems = [
        f"{len(names)} tensors {what}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for names, what in ((missing, "are missing"), (unknown, "have no place in it"), (wrong, "have another shape"))
        if names
    ]
    if unknown and all(name.startswith(VALUE_HEAD) for name in unknown):
        problems.append("the weights bring a value head: set model.add_value_head=true")
    if problems:
        raise CheckpointError(f"the weights in {files.folder} do not fit the model; " + "; ".join(problems))


def _cast(model: OpenVLAModel, dtype: torch.dtype) -> None:
    """Cast the parameters; rotary frequencies stay in fp32, or rounding would move the positions."""
    for parameter in model.parameters():
        if not parameter.is_meta or parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    llama = model.language_model.model
    if llama.rotary_emb.inv_freq.is_meta and torch.get_default_device().type != "meta":
        llama.rotary_emb = LlamaRotaryEmbedding(config=model.language_model.config)
