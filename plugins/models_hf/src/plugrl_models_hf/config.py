"""`model:` for the model types `causal_lm` and `causal_lm_value`. Light: pydantic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from plugrl.config.schema import ModelConfig
from plugrl.config.schema.base import Section


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
        """Return the same settings with weights and tokenizer of ``folder`` alone."""
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
        return cfg
    if isinstance(cfg, BaseModel):
        return CausalLMConfig.model_validate(cfg.model_dump(exclude_unset=True))
    return CausalLMConfig.model_validate(_plain(cfg))


def _plain(value: Any) -> Any:
    """Copy nested mappings and sequences into dicts and lists, whatever library they come from."""
    if isinstance(value, BaseModel):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value
