"""The section ``fsdp_config``. Key names and defaults are verl's where verl has the key, else those of the seeds."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from plugrl.config.schema.parallelism import ParallelismConfig
from plugrl_engine_fsdp.config.dtypes import AutoDtype, Dtype


def _as_list(value: Any) -> Any:
    """Accept one class name where a list of them is expected."""
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str] | None, BeforeValidator(_as_list)]


class _Section(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MixedPrecision(_Section):
    """Dtypes of one step. When the section is given it replaces what ``dtype`` derives, as a whole."""

    param_dtype: AutoDtype = Field("bf16", description="dtype of compute and of the parameters while gathered")
    reduce_dtype: Dtype = Field("fp32", description="dtype in which gradients are accumulated and averaged")


class MixedPrecisionPolicyConfig(_Section):
    """fsdp2: the fields of torch's MixedPrecisionPolicy, for every unit; they replace what ``dtype`` derives."""

    param_dtype: Dtype | None = Field(None, description="dtype of compute; needed as soon as another field is given")
    reduce_dtype: Dtype | None = Field(None, description="dtype in which gradients are reduced; null: fp32")
    output_dtype: Dtype | None = Field(None, description="dtype of what a unit returns; null: as computed")
    cast_forward_inputs: bool = Field(True, description="cast the inputs of a unit to param_dtype")

    @model_validator(mode="after")
    def _compute_dtype_is_given(self) -> MixedPrecisionPolicyConfig:
        if self.model_fields_set and self.param_dtype is None:
            given = ", ".join(sorted(self.model_fields_set))
            raise ValueError(
                f"param_dtype is needed beside {given}: the policy is made of these fields alone and replaces the one "
                "that dtype (accelerator.mixed_precision) derives"
            )
        return self


class GradScalerConfig(_Section):
    """fp16: the loss scale grows while gradients are finite and shrinks when they are not."""

    init_scale: float = Field(2.0**16, gt=0, description="first scale")
    growth_factor: float = Field(2.0, gt=1, description="factor after growth_interval finite steps")
    backoff_factor: float = Field(0.5, gt=0, lt=1, description="factor after a step that was not finite")
    growth_interval: int = Field(2000, ge=1, description="finite steps in a row before the scale grows")


class WrapPolicy(_Section):
    """Which modules become units that are gathered one at a time. By default the policy's own ``wrap_units()``."""

    transformer_layer_cls_to_wrap: Names = Field(
        None, description="class names of the units; null: what the policy declares"
    )
    module_classes_to_wrap: Names = Field(None, description="further class names, such as a vision tower's")
    no_split_names: Names = Field(None, description="tags (``_fsdp_wrap_name``) of modules that become units")
    min_num_params: int = Field(
        0, ge=0, description="> 0: every submodule with at least this many parameters is a unit, whatever its class"
    )


class DdpOptions(_Section):
    """Options of replicated training."""

    find_unused_parameters: bool = Field(
        False, description="needed only when some trainable parameters take no part in the loss; costs a graph walk"
    )
    gradient_as_bucket_view: bool = Field(False, description="gradients share memory with the reduction buckets")
    static_graph: bool = Field(False, description="the same parameters take part in every step, in the same order")


class FsdpConfig(_Section):
    """Settings of the engines ``fsdp2``, ``ddp`` and ``fsdp``."""

    parallelism: ParallelismConfig | None = Field(
        None, description="copies and shards, also written at the root; null: fsdp2 shards over all ranks"
    )
    param_offload: bool = Field(False, description="keep parameters and gradients on the host between phases")
    optimizer_offload: bool = Field(False, description="keep the optimizer state on the host between phases")
    cpu_offload: bool = Field(
        False, description="fsdp2: keep parameters, gradients and optimizer state on the host, gather unit by unit"
    )
    offload_pin_memory: bool = Field(False, description="fsdp2: page-lock what cpu_offload keeps on the host")
    reshard_after_forward: bool = Field(
        True, description="fsdp2: free gathered parameters after forward and gather them again for backward"
    )
    fsdp_size: int = Field(-1, description="fsdp2: ranks that share one copy; -1 or the world size: all of them")
    ignored_modules: str | None = Field(
        None, description="fsdp2: regular expression; modules whose whole path it matches stay whole on every rank"
    )
    dtype: AutoDtype = Field("auto", description="compute dtype; auto: the model's precision, else the platform's")
    mixed_precision: MixedPrecision | None = None
    mixed_precision_policy: MixedPrecisionPolicyConfig = Field(default_factory=lambda: MixedPrecisionPolicyConfig())
    grad_scaler: GradScalerConfig = Field(default_factory=lambda: GradScalerConfig())
    model_dtype: Dtype | None = Field(
        None, description="dtype in which weights are kept; null: fp32, or the compute dtype when forward_only"
    )
    wrap_policy: WrapPolicy = Field(default_factory=lambda: WrapPolicy())
    forward_only: bool = Field(False, description="no gradients and no optimizer (reference policy)")
    ddp: DdpOptions = Field(default_factory=lambda: DdpOptions())

    @field_validator("ignored_modules")
    @classmethod
    def _is_expression(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _one_size(self) -> FsdpConfig:
        if self.parallelism is not None and self.fsdp_size != -1:
            raise ValueError("fsdp_size and parallelism say the same thing; give parallelism alone")
        return self
