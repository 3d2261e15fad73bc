"""The section ``fsdp_config`` of actor, critic and ref. Key names and defaults are verl's where verl has the key.

Importing this module needs pydantic alone, so that a configuration is checked without loading torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DTYPE_NAMES = {
    "float32": "fp32", "torch.float32": "fp32", "float": "fp32",
    "bfloat16": "bf16", "torch.bfloat16": "bf16",
}  # fmt: skip


def _short_dtype(value: Any) -> Any:
    """Map torch's and verl's spellings of a dtype to ``fp32`` and ``bf16``; leave the rest to the validator."""
    return _DTYPE_NAMES.get(value, value) if isinstance(value, str) else value


Dtype = Annotated[Literal["fp32", "bf16"], BeforeValidator(_short_dtype)]
AutoDtype = Annotated[Literal["auto", "fp32", "bf16"], BeforeValidator(_short_dtype)]


def _as_list(value: Any) -> Any:
    """Accept one class name where a list of them is expected."""
    return [value] if isinstance(value, str) else value


class _Section(BaseModel):
    """Frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MixedPrecision(_Section):
    """Dtypes of one step. When the section is given it replaces what ``dtype`` derives, as a whole."""

    param_dtype: AutoDtype = Field("bf16", description="dtype of compute and of the parameters while gathered")
    reduce_dtype: Dtype = Field("fp32", description="dtype in which gradients are accumulated and averaged")


class WrapPolicy(_Section):
    """Which modules become units that are gathered one at a time. By default the policy's own ``wrap_units()``."""

    transformer_layer_cls_to_wrap: Annotated[list[str] | None, BeforeValidator(_as_list)] = Field(
        None, description="class names of the units; null: what the policy declares"
    )
    min_num_params: int = Field(
        0, ge=0, description="> 0: every submodule with at least this many parameters is a unit, whatever its class"
    )


class DdpOptions(_Section):
    """Options of the ``ddp`` backend."""

    find_unused_parameters: bool = Field(
        False, description="needed only when some trainable parameters take no part in the loss; costs a graph walk"
    )
    gradient_as_bucket_view: bool = Field(False, description="gradients share memory with the reduction buckets")


class FsdpConfig(_Section):
    """Settings of the engines ``fsdp2`` and ``ddp``."""

    param_offload: bool = Field(False, description="keep parameters and gradients on the host between phases")
    optimizer_offload: bool = Field(False, description="keep the optimizer state on the host between phases")
    reshard_after_forward: bool = Field(
        True, description="fsdp2: free gathered parameters after forward and gather them again for backward"
    )
    fsdp_size: int = Field(-1, description="fsdp2: ranks that share one copy; -1 or the world size: all of them")
    dtype: AutoDtype = Field("auto", description="compute dtype; auto: the model's precision, else the platform's")
    mixed_precision: MixedPrecision | None = None
    model_dtype: Dtype | None = Field(
        None, description="dtype in which weights are kept; null: fp32, or the compute dtype when forward_only"
    )
    wrap_policy: WrapPolicy = Field(default_factory=lambda: WrapPolicy())
    forward_only: bool = Field(False, description="no gradients and no optimizer (reference policy)")
    ddp: DdpOptions = Field(default_factory=lambda: DdpOptions())
