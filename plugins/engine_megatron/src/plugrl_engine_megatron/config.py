"""The section ``megatron``. Key names are verl's and megatron-core's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from plugrl.models.precision import short_dtype

_CONTEXT, _EXPERT = "context_parallel_size", "expert_model_parallel_size"


class MegatronConfig(BaseModel):
    """Over how many ranks a model is spread, and how it is computed there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensor_model_parallel_size: int = Field(1, ge=1, description="ranks that share each matrix")
    pipeline_model_parallel_size: int = Field(1, ge=1, description="ranks that share the layers, one after the other")
    virtual_pipeline_model_parallel_size: int | None = Field(
        None, ge=2, description="parts of the layers on each rank of a pipeline; null: one"
    )
    context_parallel_size: int = Field(1, ge=1, description="ranks that share each sequence")
    expert_model_parallel_size: int = Field(1, ge=1, description="data-parallel ranks that share a layer's experts")
    expert_tensor_parallel_size: int | None = Field(
        None, ge=1, description="ranks that share each expert's matrices; null: tensor_model_parallel_size"
    )
    sequence_parallel: bool = Field(True, description="share what lies between matrices too; with tensor parallel only")
    use_distributed_optimizer: bool = Field(True, description="spread the optimizer's state over data-parallel ranks")
    dtype: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="dtype of compute; auto: the model's, else the device's. The optimizer's weights are fp32"
    )
    recompute_granularity: Literal["full", "selective"] | None = Field(
        None, description="what is computed a second time in the backward pass; null: nothing, or full with "
        "model.enable_gradient_checkpointing"
    )  # fmt: skip
    recompute_method: Literal["uniform", "block"] | None = Field(None, description="full: which layers together")
    recompute_num_layers: int | None = Field(None, ge=1, description="full: how many layers together")
    param_offload: bool = Field(False, description="keep weights on the host between phases")
    optimizer_offload: bool = Field(False, description="keep the optimizer's state on the host between phases")
    forward_only: bool = Field(False, description="no optimizer, whatever `optim` says")

    @field_validator("dtype", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return value if value == "auto" else short_dtype(value)

    @property
    def stages(self) -> int:
        """Parts into which the layers are cut."""
        return self.pipeline_model_parallel_size * (self.virtual_pipeline_model_parallel_size or 1)

    @property
    def model_parallel_size(self) -> int:
        """Ranks that see the same rows."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size

    def problems(self, world_size: int) -> Iterator[str]:
        """Yield what does not go together, or not with so many ranks, each as a line that begins with its key."""
        tensor, pipeline = self.tensor_model_parallel_size, self.pipeline_model_parallel_size
        if world_size % self.model_parallel_size:
            yield (
                f"megatron: tensor_model_parallel_size={tensor} x pipeline_model_parallel_size={pipeline} x "
                f"{_CONTEXT}={self.context_parallel_size} = {self.model_parallel_size} ranks hold one model, which "
                f"does not divide {world_size} ranks"
            )
            return
        expert_tensor = self.expert_tensor_parallel_size or tensor
        one = expert_tensor * self.expert_model_parallel_size * pipeline
        if self.expert_model_parallel_size > 1 and world_size % one:
            yield (
                f"megatron.{_EXPERT}: {self.expert_model_parallel_size} x expert_tensor_parallel_size={expert_tensor} "
                f"x pipeline_model_parallel_size={pipeline} = {one} does not divide {world_size} ranks"
            )
        if self.expert_model_parallel_size == 1 and expert_tensor != tensor:
            yield (
                f"megatron.expert_tensor_parallel_size: only with {_EXPERT} of more than 1 may it differ from "
                f"tensor_model_parallel_size={tensor}"
            )
        if self.virtual_pipeline_model_parallel_size and pipeline < 2:
            yield (
                "megatron.virtual_pipeline_model_parallel_size: only a pipeline has virtual stages; give "
                "pipeline_model_parallel_size of at least 2, or leave it out"
            )
        if (self.recompute_method or self.recompute_num_layers) and self.recompute_granularity != "full":
            yield "megatron.recompute_method, recompute_num_layers: they go with recompute_granularity=full"
        if self.expert_model_parallel_size > 1 and tensor > 1 and not self.sequence_parallel:
            yield f"megatron.sequence_parallel: true is needed for {_EXPERT} with tensor_model_parallel_size"

    def data_parallel_size(self, world_size: int) -> int:
        """Ranks that see different rows."""
        return world_size // self.model_parallel_size

    def sequence_multiple(self) -> int:
        """What the length of a sequence must be a multiple of."""
        context = 2 * self.context_parallel_size if self.context_parallel_size > 1 else 1
        # Each rank of a context has two chunks, each of which is shared over the tensor-parallel ranks.
        return math.lcm(context, context // 2 * self.tensor_model_parallel_size if context > 1 else 1,
                        self.tensor_model_parallel_size)  # fmt: skip


def as_megatron_config(section: Any) -> MegatronConfig:
    """Take our own section, a mapping with its keys, or None for the defaults."""
    if isinstance(section, MegatronConfig):
        return section
    if isinstance(section, BaseModel):
        section = section.model_dump()
    return MegatronConfig.model_validate({} if section is None else dict(section))
