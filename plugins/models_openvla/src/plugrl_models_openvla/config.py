"""`model:` for the model types of this package. Light: pydantic only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from plugrl.config.schema import EmbodiedModelConfig
from plugrl.config.schema.base import Section
from plugrl.config.schema.model import ADAPTER_CONFIG, LoraConfig, holds_adapter
from plugrl.errors import ConfigError


class WordTokenizerConfig(Section):
    """A tokenizer with one token per word, for models built from a configuration."""

    type: Literal["words"] = "words"
    """The only kind that is built rather than loaded."""

    words: tuple[str, ...]
    """The words of the instructions, in any case; other words are refused."""


class OpenVLAConfig(EmbodiedModelConfig):
    """Where the weights, the tokenizer and the scale of actions come from, and what the policy gives."""

    model_type: str = "openvla"

    path: str | None = None
    """Folder of a published or saved checkpoint; null builds random weights from `config`."""

    config: dict[str, Any] | None = None
    """Content of a config.json: random weights of these sizes from `seed`. Instead of `path`."""

    tokenizer: str | WordTokenizerConfig | None = None
    """A tokenizer folder, or the words of a tokenizer; null: the one that lies at `path`."""

    action_dim: int = Field(7, ge=1)
    """Numbers of one action; as many as the statistics of `unnorm_key` have."""

    max_prompt_length: int = Field(30, ge=2)
    """Tokens of the longest prompt; a longer one is an error."""

    image_size: int | tuple[int, int] | None = None
    """Pixels a side that the model must take images of; null: those of the checkpoint. Another number is an error."""

    action_transform: str | None = None
    """What is done to actions last, by name: none, widowx, libero, calvin, metaworld; null is none."""

    action_scale: float = Field(1.0, gt=0)
    """Factor of a transform that scales."""

    center_crop: bool = False
    """Keep the central 90 % of the area of every image, for models that were trained on random crops."""

    value_head_sizes: tuple[int, ...] = (512, 128)
    """Widths of the hidden layers of the value head."""

    value_head_activation: str = "gelu"
    """gelu, relu or tanh."""

    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    """Attention code of the language model."""

    def from_folder(self, folder: str) -> Self:
        """Return the same settings with weights and tokenizer of ``folder`` alone, or with the adapter it holds."""
        if holds_adapter(folder):
            return self.with_adapter(folder)
        return self.model_copy(update={"path": folder, "config": None, "tokenizer": None})

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.config is None):
            given = "neither" if self.path is None else "both"
            raise ValueError(f"give either path (a checkpoint) or config (random weights), not {given}")
        if self.config is not None and self.tokenizer is None:
            raise ValueError("tokenizer is needed beside config: a folder, or {type: words, words: [...]}")
        return self

    @property
    def image_sides(self) -> tuple[int, int] | None:
        """The wanted image size, height and width."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size

    def with_base(self) -> Self:
        """Where ``path`` is the folder of an adapter, return the settings with its base there.

        Raises ConfigError for an adapter that names no base, or when ``lora.path`` is another one.
        """
        if not holds_adapter(self.path):
            return self
        assert self.path is not None
        file = Path(self.path).expanduser() / ADAPTER_CONFIG
        try:
            base = json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"model.path: {file} cannot be read: {error}") from error
        if not base:
            raise ConfigError(
                f"model.path: the adapter in {self.path} names no base, since its base was built from model.config. "
                f"Give that model.config, and model.lora.path={self.path}."
            )
        lora = self.lora or LoraConfig()
        if lora.path not in (None, self.path):
            raise ConfigError(f"model.lora.path: {lora.path}, but model.path is an adapter too: {self.path}. Give one.")
        enable = lora.enable if self.trains_adapter else "merge"
        return self.model_copy(
            update={"path": str(base), "lora": lora.model_copy(update={"path": self.path, "enable": enable})}
        )


_Config = TypeVar("_Config", bound=OpenVLAConfig)


def resolve_config(cfg: Any, schema: type[_Config]) -> _Config:
    """Return ``cfg``, a pydantic section or a mapping, as ``schema``.

    Raises ConfigError with a line for each mistake.
    """
    if isinstance(cfg, schema):
        return cfg
    values = cfg.model_dump(exclude_unset=True) if isinstance(cfg, BaseModel) else _plain(cfg)
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = (f"model.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False))
        raise ConfigError("\n".join(lines)) from None


def _plain(value: Any) -> Any:
    """Copy nested mappings and sequences into dicts and lists, whatever library they come from."""
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
