"""The section ``fsdp_config``. Key names and defaults are verl's where verl has the key, else those of the seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from plugrl.config.schema.parallelism import ParallelismConfig
from plugrl.models.precision import short_dtype
from plugrl_engine_fsdp.config.dtypes import AutoDtype, Dtype
from plugrl_engine_fsdp.config.ema import EmaConfig
from plugrl_engine_fsdp.config.mixed_precision import NAMED_BLOCKS, UnitPrecision, WrapMode, section_problems
from plugrl_engine_fsdp.config.problems import WrapConfigError


def _as_list(value: Any) -> Any:
    """Accept one class name where a list of them is expected."""
    return [value] if isinstance(value, str) else value


def _short_or_auto(value: Any) -> Any:
    return value if value == "auto" else short_dtype(value)


Names = Annotated[list[str] | None, BeforeValidator(_as_list)]
UnitDtype = Annotated[Literal["fp32", "bf16", "fp16"] | None, BeforeValidator(short_dtype)]
AutoUnitDtype = Annotated[Literal["auto", "fp32", "bf16", "fp16"] | None, BeforeValidator(_short_or_auto)]


class _Section(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class UnitPrecisionBlock(_Section):
    """Dtypes of a unit: null keeps the dtype that is there. Strategy fsdp, and fsdp2 with fsdp2_unit_precision."""

    param_dtype: AutoUnitDtype = Field(None, description="dtype of compute and of the parameters while gathered")
    reduce_dtype: UnitDtype = Field(None, description="dtype in which gradients are averaged; null: param_dtype")
    buffer_dtype: UnitDtype = Field(None, description="fsdp: dtype of floating-point buffers in compute")
    keep_low_precision_grads: bool = Field(
        False, description="fsdp: leave gradients in the dtype of compute (sharded) or of the reduction (no_shard)"
    )
    cast_forward_inputs: bool = Field(True, description="fsdp: cast the inputs of a unit to param_dtype")
    cast_root_forward_inputs: bool = Field(True, description="fsdp: cast the inputs of the whole model to param_dtype")

    @property
    def precision(self) -> UnitPrecision:
        """The block as the wrap plan takes it; ``auto``, which only an engine resolves, counts as null."""
        values = self.model_dump()
        return UnitPrecision(**{**values, "param_dtype": None if self.param_dtype == "auto" else self.param_dtype})


class MixedPrecision(UnitPrecisionBlock):
    """Dtypes of one step. When the section is given it replaces what ``dtype`` derives, as a whole."""

    param_dtype: AutoUnitDtype = Field("bf16", description="dtype of compute and of the parameters while gathered")
    reduce_dtype: UnitDtype = Field("fp32", description="dtype in which gradients are accumulated and averaged")


class WrapperConfig(_Section):
    """Modules that become units, by exactly one of three selectors."""

    module_names: list[str] | None = Field(None, description="paths or shell patterns; ``*`` crosses dots")
    module_classes: list[str] | None = Field(None, description="class names, short or qualified")
    wrap_names: list[str] | None = Field(None, description="tags (``_fsdp_wrap_name``)")
    wrap_mode: WrapMode = Field(
        "individual", description="a unit for each match; subtree: with all below; combined: one unit for all matches"
    )


class AmpAutocast(_Section):
    """fsdp: autocast around the forward in place of FSDP's own mixed precision."""

    enabled: bool = False
    precision: Literal["fp16", "bf16", "fp32"] = "bf16"


class MixedPrecisionPolicyConfig(_Section):
    """fsdp2: the fields of torch's MixedPrecisionPolicy, for every unit; they replace what ``dtype`` derives."""

    param_dtype: Dtype | None = Field(None, description="dtype of compute; needed as soon as another field is given")
    reduce_dtype: Dtype | None = Field(None, description="dtype in which gradients are reduced; null: fp32")
    output_dtype: Dtype | None = Field(None, description="dtype of what a unit returns; null: as computed")
    cast_forward_inputs: bool = Field(True, description="cast the inputs of a unit to param_dtype")

    @model_validator(mode="after")
    def _compute_dtype_is_given(self) -> MixedPrecisionPolicyConfig:
        # Compared by value: a configuration that was printed with its defaults must load again.
        fields = type(self).model_fields
        given = ", ".join(sorted(key for key, field in fields.items() if getattr(self, key) != field.default))
        if given and self.param_dtype is None:
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
    min_scale: float = Field(1.0, gt=0, description="the scale shrinks no further than to this")

    @model_validator(mode="after")
    def _starts_above_the_floor(self) -> GradScalerConfig:
        if self.init_scale < self.min_scale:
            raise ValueError(f"init_scale {self.init_scale:g} is below min_scale {self.min_scale:g}")
        return self


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
    strategy: Literal["fsdp", "fsdp2", "ddp"] | None = Field(
        None, description="of this component; null, and usual: that of the key `strategy` beside fsdp_config"
    )
    disable: bool = Field(False, description="the whole model is one unit")
    wrappers: dict[str, WrapperConfig] = Field({}, description="fsdp: named sets of modules that become units")
    mixed_precision_policies: dict[str, UnitPrecisionBlock] = Field({}, description="fsdp: named precisions")
    mixed_precision_rules: dict[str, str] = Field({}, description="fsdp: wrapper -> policy")
    fsdp2_unit_precision: bool = Field(False, description="fsdp2: allow wrappers, policies and rules, which are fsdp's")
    amp_autocast: AmpAutocast = Field(default_factory=lambda: AmpAutocast())
    sharding_strategy: Literal["full_shard", "shard_grad_op", "no_shard", "hybrid_shard"] | None = Field(
        None, description="fsdp: null follows parallelism, else full_shard"
    )
    hybrid_shard_size: int | None = Field(None, description="fsdp: ranks that share one copy under hybrid_shard")
    use_orig_params: bool = Field(True, description="fsdp: keep the parameters as they are beside the flat ones")
    forward_prefetch: bool = Field(False, description="fsdp: gather the next unit before the forward of this one")
    backward_prefetch: Literal["pre", "post"] | None = Field(
        None, description="fsdp: gather the next unit before or after the gradients of this one"
    )
    limit_all_gathers: bool = Field(
        False, description="fsdp: let the host wait, so that no more than two units lie gathered"
    )
    ignored_module_classes: Names = Field(
        None, description="class names of modules that stay whole on every rank, as ignored_modules"
    )
    forward_only: bool = Field(False, description="no gradients and no optimizer (reference policy)")
    ema: EmaConfig = Field(default_factory=lambda: EmaConfig())
    ddp: DdpOptions = Field(default_factory=lambda: DdpOptions())

    @model_validator(mode="before")
    @classmethod
    def _units_are_sound(cls, data: Any) -> Any:
        """Report everything that is wrong with units and their precision together."""
        if isinstance(data, Mapping):
            if "amp" in data:
                raise ValueError("amp is no longer a key; use amp_autocast (enabled, precision) and grad_scaler")
            WrapConfigError.raise_if(section_problems(data), prefix="")
            blocks = {name: data[name] for name in NAMED_BLOCKS if data.get(name) is not None}
            data = {key: value for key, value in data.items() if key not in NAMED_BLOCKS} | blocks
        return data

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
