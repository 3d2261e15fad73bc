"""`model:` for the model types `mlp_policy` and `cnn_policy`. Light: pydantic only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from plugrl.config.schema import EmbodiedModelConfig
from plugrl.errors import CheckpointError, ConfigError

CONFIG_FILE = "config.json"

Bound = float | tuple[float, ...]
"""One number for all dimensions of an action, or one for each."""

_OF_THE_RUN = (
    "path", "norm_stats", "unnorm_key", "precision", "seed", "lora", "trust_remote_code",
    "enable_gradient_checkpointing",
)  # fmt: skip
"""Keys that say where weights come from and how they are used, and not what the model is."""


class PolicyConfig(EmbodiedModelConfig):
    """What both policies have in common: heads, chunks and hidden layers."""

    state_dim: int = Field(0, ge=0)
    """Numbers in the field `states` of an observation."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers; the value head has its own of the same widths."""

    activation: Literal["tanh", "relu", "gelu", "silu"] = "tanh"
    """Function between the layers."""

    head: Literal["gaussian", "discrete"] = "gaussian"
    """Distribution of an action: a normal one, or bins, for each dimension by itself."""

    std: Literal["independent", "dependent"] = "independent"
    """Gaussian head: one learned deviation for each dimension, or one that follows the observation."""

    init_std: float = Field(1.0, gt=0)
    """Deviation at the start."""

    min_std: float = Field(1e-3, gt=0)
    """The deviation is at least this."""

    max_std: float = Field(10.0, gt=0)
    """The deviation is at most this."""

    num_bins: int = Field(11, ge=2)
    """Discrete head: bins of each dimension, spread evenly from `action_low` to `action_high`."""

    action_low: Bound = -1.0
    """Smallest action: the centre of the first bin, or where a Gaussian action is clipped."""

    action_high: Bound = 1.0
    """Largest action."""

    state_clip: float | None = Field(10.0, gt=0)
    """Normalised states are clipped to plus and minus this; null leaves them as they are."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(f"hidden_sizes must be widths of at least 1, not {list(self.hidden_sizes)}")
        if self.min_std > self.max_std:
            raise ValueError(f"min_std {self.min_std} is more than max_std {self.max_std}")
        low, high = self.bounds
        if any(a >= b for a, b in zip(low, high, strict=True)):
            raise ValueError(f"action_low {self.action_low} must be less than action_high {self.action_high}")
        return self

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Smallest and largest action, a number for each dimension. Raises ValueError for another number of them."""
        return self._spread("action_low"), self._spread("action_high")

    def _spread(self, name: str) -> tuple[float, ...]:
        value: Bound = getattr(self, name)
        values = (value,) * self.action_dim if isinstance(value, int | float) else tuple(value)
        if len(values) != self.action_dim:
            raise ValueError(f"{name} has {len(values)} numbers, but action_dim is {self.action_dim}")
        return values

    def shape(self) -> dict[str, Any]:
        """What a model folder records: everything but where the weights came from."""
        return {name: value for name, value in self.model_dump(mode="json").items() if name not in _OF_THE_RUN}


class MlpPolicyConfig(PolicyConfig):
    """A policy on states."""

    model_type: str = "mlp_policy"
    """Registered name of the model type."""

    state_dim: int = Field(ge=1)
    """Numbers in the field `states` of an observation."""


class CnnPolicyConfig(PolicyConfig):
    """A policy on camera images, and on states where `state_dim` is not 0."""

    model_type: str = "cnn_policy"
    """Registered name of the model type."""

    image_shape: tuple[int, int]
    """Height and width of the images."""

    image_keys: tuple[Literal["main_images", "wrist_images", "extra_view_images"], ...] = ("main_images",)
    """Fields of an observation that are looked at."""

    num_extra_views: int = Field(1, ge=1)
    """Images in `extra_view_images`."""

    channels: tuple[int, ...] = (32, 64, 64)
    """Channels of the convolutions, each of which halves height and width."""

    activation: Literal["tanh", "relu", "gelu", "silu"] = "relu"
    """Function between the layers."""

    @model_validator(mode="after")
    def _large_enough(self) -> Self:
        least = 2 ** len(self.channels)
        if min(self.image_shape) < least:
            raise ValueError(
                f"image_shape {list(self.image_shape)} is too small for {len(self.channels)} convolutions, each of "
                f"which halves it: at least {least} x {least}, or fewer channels"
            )
        return self

    @property
    def num_images(self) -> int:
        """Images of one observation."""
        return sum(self.num_extra_views if key == "extra_view_images" else 1 for key in self.image_keys)


def resolve_config(cfg: Any, schema: type[PolicyConfig]) -> Any:
    """Return ``cfg`` as an instance of ``schema``: itself, another pydantic section or a mapping.

    Raises:
        ConfigError: unknown keys and wrong values; a folder at ``path`` of another shape of model.
    """
    if isinstance(cfg, schema):
        config = cfg
    else:
        values = cfg.model_dump(exclude_unset=True) if isinstance(cfg, BaseModel) else _plain(cfg)
        try:
            config = schema.model_validate(values)
        except ValidationError as error:
            found = error.errors(include_url=False)
            raise ConfigError(
                "\n".join(f"model.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in found)
            ) from None
    if config.path is not None:
        _check_folder(config)
    return config


def _check_folder(config: PolicyConfig) -> None:
    """Compare with what the folder says of its weights, so that a mistake is no list of tensor shapes."""
    file = Path(str(config.path)).expanduser() / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"model.path: {config.path} is no folder of a {config.model_type}: it has no {CONFIG_FILE}.")
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"model.path: {file} is not valid JSON: {error}") from error
    for name in ("model_type", "state_dim", "action_dim", "num_action_chunks", "hidden_sizes", "head", "num_bins",
                 "image_shape", "image_keys", "channels", "std"):  # fmt: skip
        own = config.shape().get(name)
        if name in saved and saved[name] != own:
            raise ConfigError(
                f"model.{name}: {own!r}, but the weights in {config.path} are of a model with {saved[name]!r}."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in value}
    return value
