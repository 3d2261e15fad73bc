"""In which dtype FSDP1 leaves the gradient of each parameter, and whether torch's AdamW takes it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from plugrl.errors import ConfigError
from plugrl.models.precision import torch_dtype_from_precision
from plugrl_engine_fsdp.config.mixed_precision import UnitPrecision
from plugrl_engine_fsdp.wrapping.plan import WrapPlan
from plugrl_engine_fsdp.wrapping.selectors import nearest_above


def gradient_dtype(
    precision: UnitPrecision, original: torch.dtype, *, sharded: bool, cpu_offload: bool = False
) -> torch.dtype:
    """Return the dtype of a gradient after backward, for a parameter of dtype ``original``.

    Converted back to ``original`` unless the unit keeps low-precision gradients. Then sharded strategies, and FSDP's
    parameter offload, keep the dtype of compute; no_shard keeps that of the reduction.
    """
    if not precision.keep_low_precision_grads:
        return original
    compute = torch_dtype_from_precision(precision.param_dtype) or original
    if sharded or cpu_offload:
        return compute
    return torch_dtype_from_precision(precision.reduce_dtype) or compute


def check_gradient_dtypes(
    parameters: Mapping[str, tuple[torch.dtype, bool]], plan: WrapPlan, *, sharded: bool, cpu_offload: bool = False
) -> None:
    """Refuse gradients that torch's AdamW cannot use. ``parameters``: name to dtype and requires_grad.

    Raises:
        ConfigError: a unit keeps gradients in another dtype than its parameters have.
    """
    units = {unit.path: unit for unit in plan.units}
    wrong: dict[str, str] = {}
    for name, (dtype, trainable) in parameters.items():
        unit = units[nearest_above(name, units)]
        kept = gradient_dtype(unit.precision, dtype, sharded=sharded, cpu_offload=cpu_offload)
        if trainable and kept != dtype:
            wrong.setdefault(unit.path, f"{name} is {_short(dtype)}, its gradient {_short(kept)}")
    if wrong:
        listed = "; ".join(list(wrong.values())[:3])
        more = f" ({len(wrong)} units in all)" if len(wrong) > 3 else ""
        raise ConfigError(
            f"fsdp_config.mixed_precision.keep_low_precision_grads: AdamW needs gradients in the dtype of the "
            f"parameters: {listed}{more}. Set actor.optim.use_fp32_master_params=true or keep_low_precision_grads=false"
        )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
