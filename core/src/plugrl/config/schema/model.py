"""`model:`: the policy. A plugin extends :class:`ModelConfig` by the keys of its model type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from plugrl.config.schema.base import Names, Section

Precision = Literal["auto", "fp32", "bf16", "fp16"]
"""A floating-point type; `auto` asks the platform which one it is fast in."""


ADAPTER_CONFIG = "adapter_config.json"
"""The file by which a folder is known to hold an adapter rather than a model."""


def _word(default: str) -> BeforeValidator:
    """Take a word in any case; null is the default."""

    def read(value: object) -> object:
        if value is None:
            return default
        return value.lower() if isinstance(value, str) else value

    return BeforeValidator(read)


class LoraConfig(Section):
    """An adapter that is trained while the weights under it stay frozen. The section alone switches it on."""

    enable: bool | Literal["merge"] | None = None
    """Train an adapter; null does so unless `rank` is 0. `merge` adds the one at `path` to the weights for good."""

    method: Annotated[Literal["lora"], _word("lora")] = "lora"
    """Kind of the adapter: low-rank matrices beside linear layers."""

    rank: int = Field(16, ge=0)
    """Rank of the matrices; 0 trains no adapter."""

    alpha: float | None = Field(None, gt=0)
    """The product of the matrices is scaled by alpha / rank; null takes the rank."""

    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of what goes into the matrices, in training."""

    target_modules: str | tuple[str, ...] | None = None
    """Names of the linear layers that get an adapter; a text is a regular expression for their whole path, or
    `all-linear`; null takes those that the model declares."""

    modules_to_save: Annotated[Names, BeforeValidator(lambda value: () if value is None else value)] = ()
    """Names of modules that are trained in full, and saved with the adapter."""

    path: str | None = None
    """Folder of a trained adapter to go on with; its own configuration says rank and layers. Null starts a new one."""

    init: Annotated[Literal["default", "gaussian", "random"], _word("default")] = "default"
    """Start of a new adapter. All but `random` change nothing at first."""

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if self.enable is True and self.rank == 0 and self.path is None:
            raise ValueError("rank is 0, which makes no adapter, and enable asks for one")
        if self.enable == "merge" and self.path is None:
            raise ValueError("enable: merge needs the path of the adapter")
        return self

    @property
    def is_trained(self) -> bool:
        """Whether the policy gets an adapter to train."""
        return self.enable is True or (self.enable is None and (self.rank > 0 or self.path is not None))

    @property
    def is_merged(self) -> bool:
        """Whether the adapter at ``path`` is added to the weights for good."""
        return self.enable == "merge" and self.path is not None


class ModelConfig(Section):
    """The keys that every model type understands; a model's own schema is a subclass."""

    model_type: str = "causal_lm"
    """Registered name of the model type."""

    path: str | None = None
    """Folder (or published name) of the pre-trained weights; null builds random ones where the model type can."""

    precision: Precision = "auto"
    """Type of the parameters in forward passes; `auto` is what the platform is fast in."""

    trust_remote_code: bool = False
    """Run code that comes with the weights. Refused by default."""

    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""

    seed: int = 0
    """Seed of random initial weights."""

    lora: LoraConfig | None = None
    """Train an adapter instead of the weights; null trains the weights."""

    @property
    def trains_adapter(self) -> bool:
        """Whether an adapter is trained on frozen weights; a folder of an adapter as ``path`` says so as well."""
        if self.lora is None:
            return holds_adapter(self.path)
        if self.lora.enable is None and holds_adapter(self.path):
            return True
        return self.lora.is_trained

    @property
    def starts_adapter(self) -> bool:
        """Whether the adapter that is trained is a new one that changes nothing at first."""
        new = self.lora is not None and self.lora.path is None and self.lora.init != "random"
        return new and self.trains_adapter and not holds_adapter(self.path)

    def without_adapter(self) -> Self:
        """Return the settings of the same policy as a plain model, with the adapter it starts from in its weights."""
        lora = self.lora or LoraConfig()
        if not self.trains_adapter:
            return self
        merge = lora.path is not None or holds_adapter(self.path)
        return self.model_copy(update={"lora": lora.model_copy(update={"enable": "merge" if merge else False})})

    def from_folder(self, folder: str) -> Self:
        """Return the same settings with the weights of ``folder``, which a checkpoint holds: a model or an adapter."""
        if holds_adapter(folder):
            return self.with_adapter(folder)
        return self.model_copy(update={"path": folder})

    def with_adapter(self, folder: str) -> Self:
        """Return the same settings with the adapter in ``folder`` on the weights as they are."""
        lora = self.lora or LoraConfig()
        # Where no adapter is to be trained, this one is part of the weights.
        enable = lora.enable if lora.enable in (None, True) else "merge"
        return self.model_copy(update={"lora": lora.model_copy(update={"path": folder, "enable": enable})})


class EmbodiedModelConfig(ModelConfig):
    """The keys that every policy for environments understands; a model's own schema is a subclass."""

    action_dim: int = Field(1, ge=1)
    """Numbers of one action."""

    num_action_chunks: int = Field(1, ge=1)
    """Actions that the policy gives at once."""

    add_value_head: bool = False
    """Give the policy a head for values, which the advantage estimator gae needs."""

    unnorm_key: str | None = None
    """Name of the statistics by which actions are un-normalised, where the weights bring several."""

    norm_stats: str | dict[str, Any] | None = None
    """Statistics of actions and states by data set, or a dataset_statistics.json; they go over those of the weights.
    Supervised training on demonstrations fills them in from the data where they are not given."""


class OpenModelConfig(EmbodiedModelConfig):
    """The keys of a model type that was registered without a schema: there is nothing to check them against."""

    model_config = ConfigDict(extra="allow")


def holds_adapter(folder: str | os.PathLike[str] | None) -> bool:
    """Whether a folder holds an adapter rather than a model."""
    return folder is not None and (Path(folder).expanduser() / ADAPTER_CONFIG).is_file()
