"""What ``config.json`` of an OpenVLA checkpoint says, and its companions. Light: pydantic only.

Only declared fields are read; what else stands in the file (there are dozens of defaults of the library that wrote it)
is kept for saving and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from plugrl.errors import ConfigError, nearest, one_of
from plugrl_models_openvla.towers import TowerConfig, towers_of

_LANGUAGE_FAMILIES = ("llama2-", "vicuna-v15-")
_PROJECTORS = ("gelu-mlp", "fused-gelu-mlp")
FUSED_PREFIXES = ("dinosiglip", "dinoclip")
"""Backbone identifiers that start so have two towers."""

_PUBLISHED_TOO = {"model_type", "architectures", "auto_map", "hf_llm_id", "llm_max_length", "output_projector_states",
                  "torch_dtype", "dtype", "transformers_version"}  # fmt: skip
"""Fields of published files that say nothing about the model."""


class _Declared(BaseModel):
    """Declared fields of a file that holds others as well."""

    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())
    title: ClassVar[str] = "config.json"

    @classmethod
    def read(cls, values: Mapping[str, Any], *, strict: bool = False) -> Self:
        """Check and return the declared fields. Raises ConfigError with a line for each that is wrong.

        ``strict``: so is a key that is neither declared nor known to stand in published files.
        """
        unknown = [key for key in values if key not in cls.model_fields and key not in _PUBLISHED_TOO]
        if strict and unknown:
            close = nearest(unknown[0], cls.model_fields)
            hint = f"did you mean {close}?" if close else f"it has {one_of(cls.model_fields)}"
            raise ConfigError(f'model.config: there is no "{unknown[0]}"; {hint}')
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = (f"{cls.title}: {_path(item)}{item['msg']}" for item in error.errors(include_url=False))
            raise ConfigError("\n".join(lines)) from None


def _path(item: Mapping[str, Any]) -> str:
    return ".".join(map(str, item["loc"])) + ": " if item["loc"] else ""


class TextConfig(_Declared):
    """The Llama language model; what the file leaves out is as in Llama-7B."""

    model_type: str = "llama"
    vocab_size: int = Field(32000, gt=0)
    hidden_size: int = Field(4096, gt=0)
    intermediate_size: int = Field(11008, gt=0)
    num_hidden_layers: int = Field(32, gt=0)
    num_attention_heads: int = Field(32, gt=0)
    num_key_value_heads: int | None = Field(None, gt=0)
    head_dim: int | None = Field(None, gt=0)
    hidden_act: str = "silu"
    max_position_embeddings: int = Field(2048, gt=0)
    initializer_range: float = Field(0.02, gt=0)
    rms_norm_eps: float = Field(1e-6, gt=0)
    rope_theta: float = Field(10000.0, gt=0)
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    tie_word_embeddings: bool = False

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        if self.model_type != "llama":
            raise ValueError(f'model_type "{self.model_type}" is not implemented, only "llama" is')
        if self.tie_word_embeddings:
            raise ValueError("tie_word_embeddings: true is not implemented; checkpoints of this family have an lm_head")
        heads, groups = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % groups:
            raise ValueError(f"num_key_value_heads {groups} does not divide num_attention_heads {heads}")
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {heads}")
        return self

    def rope(self) -> dict[str, Any]:
        """Return the rotary settings as transformers 5 names them."""
        given = self.rope_parameters or self.rope_scaling or {}
        kind = given.get("rope_type") or given.get("type") or "default"
        rest = {key: value for key, value in given.items() if key not in ("type", "rope_type")}
        return {"rope_theta": self.rope_theta, **rest, "rope_type": kind}


class FolderConfig(_Declared):
    """``config.json``, with the sizes of both vision towers worked out."""

    vision_backbone_id: str = "siglip-vit-so400m"
    llm_backbone_id: str = "llama2-7b-pure"
    arch_specifier: str | None = None
    use_fused_vision_backbone: bool | None = None
    timm_model_ids: tuple[str, ...] | None = None
    timm_override_act_layers: tuple[str | None, ...] | None = None
    image_sizes: tuple[int, ...] | None = None
    image_resize_strategy: str = "resize-naive"
    vision_overrides: tuple[dict[str, Any], ...] | None = None
    text_config: TextConfig = Field(default_factory=lambda: TextConfig.model_validate({}))
    pad_token_id: int = Field(32000, ge=0)
    pad_to_multiple_of: int = Field(64, ge=0)
    n_action_bins: int = Field(256, ge=2)
    norm_stats: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _no_nulls(cls, values: Any) -> Any:
        """A null where a section is expected is as good as nothing."""
        if not isinstance(values, Mapping):
            return values
        sections = ("text_config", "norm_stats")
        return {key: value for key, value in values.items() if value is not None or key not in sections}

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        if not self.llm_backbone_id.startswith(_LANGUAGE_FAMILIES):
            raise ValueError(
                f'llm_backbone_id "{self.llm_backbone_id}" is not implemented; the Llama family is: '
                f"{one_of(f'{name}...' for name in _LANGUAGE_FAMILIES)}"
            )
        kind = (self.arch_specifier or _PROJECTORS[0]).removeprefix("no-align+")
        if kind not in _PROJECTORS:
            raise ValueError(f'arch_specifier "{self.arch_specifier}" is not implemented; {one_of(_PROJECTORS)} are')
        if any(self.timm_override_act_layers or ()):
            raise ValueError(f"timm_override_act_layers {list(self.timm_override_act_layers or ())} is not implemented")
        patches = [tower.num_patches for tower in self.towers]
        if len(set(patches)) > 1:
            raise ValueError(f"both vision towers must see as many patches, not {one_of(map(str, patches))}")
        if self.text_vocab < self.n_action_bins:
            raise ValueError(
                f"n_action_bins {self.n_action_bins} do not fit a text vocabulary of {self.text_vocab} "
                f"({self.text_config.vocab_size} less {self.pad_to_multiple_of} of padding)"
            )
        return self

    @property
    def is_fused(self) -> bool:
        """Whether there are two vision towers."""
        if self.use_fused_vision_backbone is None:
            return self.vision_backbone_id.startswith(FUSED_PREFIXES)
        return self.use_fused_vision_backbone

    @property
    def towers(self) -> tuple[TowerConfig, ...]:
        """The vision towers in the order of their channels."""
        return towers_of(
            self.vision_backbone_id, self.timm_model_ids, self.image_sizes, self.vision_overrides, fused=self.is_fused
        )

    @property
    def text_vocab(self) -> int:
        """Size of the text vocabulary without the padding of the embedding: one above the highest action id."""
        return self.text_config.vocab_size - self.pad_to_multiple_of

    @property
    def num_patches(self) -> int:
        """Patches of one image, which become as many tokens."""
        return self.towers[0].num_patches


class PreprocessorConfig(_Declared):
    """``preprocessor_config.json``: how images are normalised; what it leaves out is as the towers were trained."""

    title: ClassVar[str] = "preprocessor_config.json"
    means: tuple[tuple[float, ...], ...] | None = None
    stds: tuple[tuple[float, ...], ...] | None = None
    image_resize_strategy: str | None = None

    @model_validator(mode="after")
    def _has_channels(self) -> Self:
        for name, values in (("means", self.means), ("stds", self.stds)):
            if any(len(value) != 3 for value in values or ()):
                raise ValueError(f"{name} must hold three numbers for each vision tower, not {values}")
        return self
