"""`model:` for the model types `causal_lm` and `causal_lm_value`. Light: pydantic only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from plugrl.config.schema import LoraConfig, ModelConfig
from plugrl.config.schema.base import Section
from plugrl.config.schema.model import ADAPTER_CONFIG, holds_adapter
from plugrl.errors import ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class CharacterTokenizerConfig(Section):
    """A tokenizer with one token per character, for models built from a configuration."""

    type: Literal["characters"] = "characters"
    """The only kind that is built rather than loaded."""

    alphabet: str
    """The characters, each of which becomes a token; text with another character is refused."""


class CausalLMConfig(ModelConfig):
    """Where the weights, the tokenizer and the chat template of a Hugging Face causal language model come from."""

    path: str | None = None
    """A folder, a GGUF file, or `package:NAME/FILE` for a file that an installed package ships."""

    gguf_file: str | None = None
    """Name of the GGUF file inside the folder `path`."""

    config: dict[str, Any] | None = None
    """A Hugging Face configuration with its `model_type`; random weights from `seed`. Instead of `path`."""

    tokenizer: str | CharacterTokenizerConfig | None = None
    """A tokenizer folder or GGUF file, or a character tokenizer; null: the one that lies at `path`."""

    attn_implementation: str = "sdpa"
    """Attention code of transformers: sdpa, eager, ...."""

    use_remove_padding: bool = True
    """Train on the tokens that count alone, and on a prompt that several responses share only once, where the model's
    attention allows it."""

    chat_template: str | None = None
    """A Jinja chat template, or a file that holds one; null: the tokenizer's own."""

    system_prompt: str | None = None
    """Put before every conversation that has no system message of its own."""

    cache_dir: str | None = None
    """Where converted GGUF files are kept; null: the user's cache folder."""

    def from_folder(self, folder: str) -> CausalLMConfig:
        """Return the same settings with weights and tokenizer of ``folder`` alone, or with the adapter it holds."""
        if holds_adapter(folder):
            return self.with_adapter(folder)
        return self.model_copy(update={"path": folder, "config": None, "gguf_file": None, "tokenizer": None})

    @model_validator(mode="after")
    def _one_source(self) -> CausalLMConfig:
        if (self.path is None) == (self.config is None):
            given = "neither" if self.path is None else "both"
            raise ValueError(f"give either path (pre-trained weights) or config (random weights), not {given}")
        if self.config is not None:
            if not (self.config.get("model_type") or self.config.get("architecture")):
                raise ValueError("config needs model_type, a Hugging Face model type such as qwen3 or llama")
            if self.tokenizer is None:
                raise ValueError("tokenizer is needed beside config: a folder, or {type: characters, alphabet: ...}")
        if self.gguf_file is not None and self.path is None:
            raise ValueError("gguf_file names a file inside path, which is not given")
        return self


def resolve_config(cfg: Any) -> CausalLMConfig:
    """Return ``cfg`` as CausalLMConfig: our own, any pydantic section, a mapping or an OmegaConf configuration.

    Raises pydantic's ValidationError (a ValueError) for unknown keys and wrong values.
    """
    if isinstance(cfg, CausalLMConfig):
        return _with_base(cfg)
    if isinstance(cfg, BaseModel):
        return _with_base(CausalLMConfig.model_validate(cfg.model_dump(exclude_unset=True)))
    return _with_base(CausalLMConfig.model_validate(_plain(cfg)))


def _with_base(config: CausalLMConfig) -> CausalLMConfig:
    """Where ``path`` is the folder of an adapter, put its base there and the folder at ``lora.path``."""
    folder = config.path
    if folder is None or not holds_adapter(folder):
        return config
    file = Path(folder).expanduser() / ADAPTER_CONFIG
    try:
        base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"model.path: {file} cannot be read: {error}") from error
    if not base:
        raise ConfigError(
            f"model.path: the adapter in {folder} names no base, since its base was built from model.config. Give "
            f"that model.config, and model.lora.path={folder}."
        )
    lora = config.lora or LoraConfig()
    if lora.path not in (None, folder):
        raise ConfigError(f"model.lora.path: {lora.path}, but model.path is an adapter too: {folder}. Give one.")
    enable = lora.enable if config.trains_adapter else "merge"
    update: dict[str, Any] = {"path": str(base), "lora": lora.model_copy(update={"path": folder, "enable": enable})}
    if config.tokenizer is None and any((file.parent / name).is_file() for name in _TOKENIZER_FILES):
        update["tokenizer"] = folder
    return config.model_copy(update=update)


def _plain(value: Any) -> Any:
    """Copy nested mappings and sequences into dicts and lists, whatever library they come from."""
    if isinstance(value, BaseModel):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value
