"""From a configuration to a model and to what stands around it: prompts, images, action tokens, statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from plugrl.errors import ConfigError
from plugrl_models_hf.adapter import Adapter
from plugrl_models_openvla.action_transforms import ActionTransform, action_transform
from plugrl_models_openvla.config import OpenVLAConfig, WordTokenizerConfig
from plugrl_models_openvla.folder import Folder
from plugrl_models_openvla.folder_config import FolderConfig, PreprocessorConfig
from plugrl_models_openvla.images import ImagePlan, TowerImage
from plugrl_models_openvla.loading import build_model
from plugrl_models_openvla.lora import with_adapter
from plugrl_models_openvla.model import OpenVLAModel
from plugrl_models_openvla.norm_statistics import NormStatistics
from plugrl_models_openvla.prompts import PromptEncoder
from plugrl_models_openvla.tokenizer import files_of, load_tokenizer, word_tokenizer
from plugrl_models_openvla.tokens import ActionTokens

Config = TypeVar("Config", bound=OpenVLAConfig)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a policy needs beside its model.

    Args:
        config: the section ``model:``, with the base of an adapter as its path.
        folder: the checkpoint.
        prompts, images, tokens, statistics, transform: the ways in and out.
    """

    config: OpenVLAConfig
    folder: Folder
    prompts: PromptEncoder
    images: ImagePlan
    tokens: ActionTokens
    statistics: NormStatistics
    transform: ActionTransform


def build_parts(config: OpenVLAConfig, dtype: torch.dtype) -> tuple[OpenVLAModel, Parts, Adapter | None]:
    """Return model, surroundings and adapter. Raises ConfigError or CheckpointError with the key that is wrong."""
    config = config.with_base()
    with torch.device("cpu"):  # The caller may build the model without memory, but not these.
        parts = surroundings(config)
    model: OpenVLAModel = build_model(parts.folder, config, dtype)
    if config.enable_gradient_checkpointing:
        model.set_gradient_checkpointing(True)
    return model, parts, with_adapter(model, config)


def surroundings(
    config: Config, read_statistics: Callable[[Config, Mapping[str, Any]], NormStatistics] | None = None
) -> Parts:
    """Return all but the model, without its weights. ``read_statistics``: in place of :func:`action_statistics`."""
    tokenizer, folder = _tokenizer_and_folder(config)
    check_image_size(config, folder.config)
    tokens = ActionTokens(folder.config.text_vocab, folder.config.n_action_bins)
    return Parts(
        config=config,
        folder=folder,
        prompts=PromptEncoder(tokenizer, config.max_prompt_length, folder.config.pad_token_id),
        images=image_plan(folder.config, folder.preprocessor, center_crop=config.center_crop),
        tokens=tokens,
        statistics=(read_statistics or action_statistics)(config, folder.config.norm_stats),
        transform=action_transform(config.action_transform, config.action_scale),
    )


def action_statistics(config: OpenVLAConfig, norm_stats: Mapping[str, Any]) -> NormStatistics:
    """Return the statistics that ``unnorm_key`` names. Raises ConfigError when they are of other actions."""
    found = NormStatistics.of(norm_stats, config.unnorm_key)
    if found.size != config.action_dim:
        raise ConfigError(
            f"model.action_dim: {config.action_dim}, but the statistics of unnorm_key "
            f'"{config.unnorm_key or next(iter(norm_stats))}" are those of actions with {found.size} numbers.'
        )
    return found


def image_plan(config: FolderConfig, preprocessor: PreprocessorConfig, *, center_crop: bool) -> ImagePlan:
    """Return how images are prepared: as the preprocessor says, else as the towers were trained."""
    towers = config.towers
    means = preprocessor.means or tuple(tower.mean for tower in towers)
    stds = preprocessor.stds or tuple(tower.std for tower in towers)
    for name, values in (("means", means), ("stds", stds)):
        if len(values) != len(towers):
            raise ConfigError(
                f"preprocessor_config.json: {name} has {len(values)} entries for {len(towers)} vision towers."
            )
    return ImagePlan(
        tuple(TowerImage(tower.image_size, mean, std) for tower, mean, std in zip(towers, means, stds, strict=True)),
        strategy=preprocessor.image_resize_strategy or config.image_resize_strategy,
        center_crop=center_crop,
    )


def check_image_size(config: OpenVLAConfig, folder: FolderConfig) -> None:
    """Raise ConfigError when the configuration counts on another image size than the model takes."""
    sizes = sorted({tower.image_size for tower in folder.towers})
    if config.image_sides is not None and set(config.image_sides) != set(sizes):
        raise ConfigError(
            f"model.image_size: {list(config.image_sides)}, but the model takes images of {sizes[0]} x {sizes[0]} "
            "pixels; observations of any size are scaled to it."
        )


def _tokenizer_and_folder(config: OpenVLAConfig) -> tuple[Any, Folder]:
    if config.config is None:
        folder = Folder.of(config)
        if config.tokenizer is None:
            return load_tokenizer(Path(str(config.path)).expanduser(), "model.path"), folder
        return _named_tokenizer(config.tokenizer), folder
    assert config.tokenizer is not None
    tokenizer = _named_tokenizer(config.tokenizer)
    values = {"pad_token_id": tokenizer.pad_token_id, **config.config}
    bins, padding = (values.get(name, FolderConfig.model_fields[name].default)
                     for name in ("n_action_bins", "pad_to_multiple_of"))  # fmt: skip
    text = dict(values.get("text_config") or {})
    text.setdefault("vocab_size", len(tokenizer) + bins + padding)
    folder = Folder.of(config.model_copy(update={"config": {**values, "text_config": text}}))
    if folder.config.text_vocab - bins < len(tokenizer):
        raise ConfigError(
            f"model.config.text_config.vocab_size: {text['vocab_size']} leaves no room for {len(tokenizer)} tokens of "
            f"text, {bins} of actions and {padding} of padding."
        )
    return tokenizer, replace(folder, files={**folder.files, **files_of(tokenizer)})


def _named_tokenizer(given: str | WordTokenizerConfig) -> Any:
    if isinstance(given, WordTokenizerConfig):
        return word_tokenizer(given.words)
    return load_tokenizer(Path(given).expanduser(), "model.tokenizer")
