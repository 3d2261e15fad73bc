"""From a configuration to the model of OpenVLA-OFT, with the heads that stand beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from plugrl.errors import CheckpointError, ConfigError
from plugrl_models_hf.adapter import Adapter
from plugrl_models_openvla.building import Parts, surroundings
from plugrl_models_openvla.companions import with_companions
from plugrl_models_openvla.film import Film
from plugrl_models_openvla.folder import Folder
from plugrl_models_openvla.folder_config import FolderConfig
from plugrl_models_openvla.loading import build_model, value_heads
from plugrl_models_openvla.lora import with_adapter
from plugrl_models_openvla.norm_statistics import EPSILON, NormStatistics
from plugrl_models_openvla.oft_config import OpenVLAOFTConfig
from plugrl_models_openvla.oft_heads import L1ActionHead, ProprioProjector
from plugrl_models_openvla.oft_model import OFTModel
from plugrl_models_openvla.slots import value_outputs

_log = logging.getLogger(__name__)

HEADS = ("action_head", "proprio_projector", "film", "value_head")
"""What may stand beside the model, by attribute and by the name of its file."""

_ASKS: Mapping[str, tuple[str, Callable[[OpenVLAOFTConfig], bool]]] = {
    "action_head": ("model.action_head=l1", lambda config: config.action_head == "l1"),
    "proprio_projector": ("model.use_proprio=true", lambda config: config.use_proprio),
    "film": ("model.use_film=true", lambda config: config.use_film),
    "value_head": ("model.add_value_head=true", lambda config: config.add_value_head),
}
_SUFFIX = "_no_noops"
"""Data sets of LIBERO stand in published checkpoints under names with this at their end."""


def build_oft(
    config: OpenVLAOFTConfig, dtype: torch.dtype
) -> tuple[OFTModel, Parts, Adapter | None, NormStatistics | None]:
    """Return model, surroundings, adapter and the statistics of proprioception where the model takes it.

    Raises ConfigError or CheckpointError with the key that is wrong.
    """
    config = config.with_base()
    with torch.device("cpu"):  # The caller may build the model without memory, but not these.
        parts = surroundings(config, action_statistics)
        proprio = proprio_statistics(config, parts.folder.config.norm_stats) if config.use_proprio else None
    folder = _with_heads(parts.folder, config)
    if config.num_images_in_input > 1 and not folder.config.is_fused:
        raise ConfigError(
            f"model.num_images_in_input: {config.num_images_in_input}, but models with one vision tower take one image."
        )
    make = partial(
        OFTModel,
        action_dim=config.action_dim,
        num_chunks=config.num_action_chunks,
        num_images=config.num_images_in_input,
        stop_id=_stop_id(parts) if config.keeps_stop else None,
    )
    heads = partial(_heads, proprio_dim=proprio.size if proprio else 0)
    model = build_model(folder, config, dtype, make=make, heads=heads)
    if config.enable_gradient_checkpointing:
        model.set_gradient_checkpointing(True)
    return model, replace(parts, folder=folder), with_adapter(model, config, HEADS), proprio


def action_statistics(config: OpenVLAOFTConfig, norm_stats: Mapping[str, Any]) -> NormStatistics:
    """Return the statistics that ``unnorm_key`` names. Raises ConfigError when they are of other actions."""
    found = NormStatistics.of(
        norm_stats, config.unnorm_key, bounds=config.action_norm, epsilon=EPSILON, fallback_suffix=_SUFFIX
    )
    if config.action_dim % found.size:
        raise ConfigError(
            f"model.action_dim: {config.action_dim}, but the statistics of unnorm_key "
            f'"{config.unnorm_key or next(iter(norm_stats))}" are those of actions with {found.size} numbers.'
        )
    return found


def proprio_statistics(config: OpenVLAOFTConfig, norm_stats: Mapping[str, Any]) -> NormStatistics:
    """Return the statistics of the robot's state. Raises ConfigError where there are none, or of another length."""
    found = NormStatistics.of(
        norm_stats, config.unnorm_key, kind="proprio", bounds=config.action_norm, fallback_suffix=_SUFFIX,
        uses_mask=False,
    )  # fmt: skip
    if config.proprio_dim not in (None, found.size):
        raise ConfigError(f"model.proprio_dim: {config.proprio_dim}, but the statistics have {found.size} numbers.")
    return found


def _heads(folder: FolderConfig, config: OpenVLAOFTConfig, proprio_dim: int) -> dict[str, nn.Module]:
    """Return the modules that the configuration asks for, with random weights."""
    hidden = folder.text_config.hidden_size
    heads = value_heads(folder, config, value_outputs(config.value_type, config.num_action_chunks))
    if config.action_head == "l1":
        heads["action_head"] = L1ActionHead(hidden, config.action_dim)
    if proprio_dim:
        heads["proprio_projector"] = ProprioProjector(proprio_dim, hidden)
    if config.use_film:
        sizes = [(tower.embed_dim, tower.depth) for tower in folder.towers]
        heads["film"] = Film(hidden, dict(zip(("featurizer", "fused_featurizer"), sizes, strict=False)))
    return heads


def _with_heads(folder: Folder, config: OpenVLAOFTConfig) -> Folder:
    """Return the folder with the files of heads beside the weights. Raises CheckpointError for a head nobody wants."""
    if folder.weights is None:
        return folder
    weights = with_companions(folder.weights, HEADS)
    stored = {name.split(".")[0] for name in weights.specs()}
    for head, (key, wanted) in _ASKS.items():
        if head in stored and not wanted(config):
            raise CheckpointError(f"model.path: the weights in {weights.folder} bring a {head}: set {key}.")
        if head not in stored and wanted(config) and head != "value_head":
            # To clone demonstrations from the weights of another model is fine, to evaluate is not.
            _log.warning("the weights in %s have no %s (%s): it starts with random weights", weights.folder, head, key)
    return replace(folder, weights=weights)


def _stop_id(parts: Parts) -> int:
    stop = parts.prompts.tokenizer.eos_token_id
    if stop is None:
        raise ConfigError("model.tokenizer: the tokenizer has no eos_token, and the sequence ends with one.")
    return int(stop)
