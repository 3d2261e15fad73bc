"""Building Hugging Face models: from a folder, from a GGUF file, or with random weights from a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from plugrl.checkpoints.layout import MODEL_SHARDS
from plugrl.errors import ConfigError
from plugrl_models_hf.config import CausalLMConfig
from plugrl_models_hf.gguf import converted_folder
from plugrl_models_hf.quiet import quiet
from plugrl_models_hf.source import model_source

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def model_folder(cfg: CausalLMConfig) -> Path:
    """Return the folder in the Hugging Face layout that ``cfg.path`` names; a GGUF file is converted into one.

    Raises ConfigError for a missing file, and for a folder that lacks config.json or asks for remote code that
    ``trust_remote_code`` does not allow.
    """
    source = model_source(cfg)
    if source.is_gguf:
        return converted_folder(source.path, cfg.cache_dir)
    if not cfg.trust_remote_code:
        refuse_remote_code(source.path / "config.json", "model.path")
    return source.path


def load_model(
    auto_class: Any, cfg: CausalLMConfig, dtype: torch.dtype, *, new_modules: tuple[str, ...] = (), **overrides: Any
) -> tuple[PreTrainedModel, set[str]]:
    """Return ``(model, names of parameters the folder lacks)`` by ``auto_class.from_pretrained``.

    ``overrides`` change the configuration; only parameters of ``new_modules`` may be lacking. Raises ConfigError for
    a folder without weights or with other ones, and for an architecture that transformers or the class does not have.
    """
    folder = model_folder(cfg)
    if not any((folder / name).is_file() for name in _WEIGHTS):
        shards = folder / MODEL_SHARDS
        hint = f" Make one file of {shards.name}/: plugrl checkpoint convert {folder}" if shards.is_dir() else ""
        raise ConfigError(f"model.path: {cfg.path} has no weights: none of {', '.join(_WEIGHTS)}.{hint}")
    local = {"trust_remote_code": cfg.trust_remote_code, "local_files_only": True}
    try:
        config = AutoConfig.from_pretrained(folder, **local)
        for key, value in overrides.items():
            setattr(config, key, value)
        if torch.get_default_device().type == "meta":  # to be looked at, or to be filled by another process
            return auto_class.from_config(config, dtype=dtype, attn_implementation=cfg.attn_implementation), set()
        with quiet():
            model, report = auto_class.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=cfg.attn_implementation,
                output_loading_info=True,
                **local,
            )
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"model.path: transformers cannot load {cfg.path}: {error}") from error
    missing = set(report["missing_keys"])
    lost = sorted(name for name in missing if name.split(".")[0] not in new_modules)
    if lost:
        raise ConfigError(f"model.path: the weights in {cfg.path} lack {', '.join(lost[:5])} ({len(lost)} in all).")
    return model, missing


def random_model(
    auto_class: Any, cfg: CausalLMConfig, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase, **kwargs: Any
) -> PreTrainedModel:
    """Return a model of ``cfg.config`` with random weights that depend on ``cfg.seed`` alone.

    The vocabulary size and special tokens come from the tokenizer where the configuration does not say.
    """
    config = hf_config(cfg, tokenizer, **kwargs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cfg.seed)
        return auto_class.from_config(config, dtype=dtype, attn_implementation=cfg.attn_implementation)


def hf_config(cfg: CausalLMConfig, tokenizer: PreTrainedTokenizerBase, **kwargs: Any) -> PretrainedConfig:
    """Return the Hugging Face configuration for random weights. Raises ConfigError for an unknown ``model_type``."""
    values = dict(cfg.config or {})
    family = str(values.pop("model_type", None) or values.pop("architecture"))
    values.pop("architecture", None)
    for key, default in _from_tokenizer(tokenizer).items():
        values.setdefault(key, default)
    if values["vocab_size"] < len(tokenizer):
        raise ConfigError(
            f"model.config.vocab_size: {values['vocab_size']} is smaller than the tokenizer's {len(tokenizer)} tokens."
        )
    try:
        return AutoConfig.for_model(family, **values, **kwargs)
    except ValueError as error:
        raise ConfigError(f"model.config.model_type: {str(error).splitlines()[0]}") from error


def _from_tokenizer(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {"vocab_size": len(tokenizer), **ids}


def refuse_remote_code(file: Path, key: str) -> None:
    """Raise ConfigError when a JSON file names code to run; transformers would ask on the terminal instead."""
    if not file.is_file():
        return
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{key}: {file} is not valid JSON: {error}") from error
    if content.get("auto_map"):
        raise ConfigError(
            f"{key}: {file} asks to run code that lies beside the weights. "
            "Read that code, then set model.trust_remote_code=true to allow it."
        )
