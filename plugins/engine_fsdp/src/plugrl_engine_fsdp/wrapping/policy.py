"""A wrap plan as the policy by which torch's FSDP1 wraps modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp.wrap import CustomPolicy

from plugrl_engine_fsdp.config.mixed_precision import UnitPrecision, torch_mixed_precision
from plugrl_engine_fsdp.wrapping.automatic import BasePolicy
from plugrl_engine_fsdp.wrapping.plan import WrapPlan, resolve_wrap_plan


def mixed_precision_of(precision: UnitPrecision) -> Any:
    """torch's MixedPrecision; None where nothing is cast, since its mere presence makes FSDP keep a second copy."""
    dtypes = (precision.param_dtype, precision.reduce_dtype, precision.buffer_dtype)
    return None if dtypes == (None, None, None) else torch_mixed_precision(precision)


def unit_policy(plan: WrapPlan, policy: nn.Module) -> CustomPolicy:
    """Wrap the units of ``plan`` in ``policy``, each in its own precision."""
    units: dict[int, dict[str, Any]] = {
        id(module): {"mixed_precision": mixed_precision_of(unit.precision)} for unit, module in plan.modules(policy)
    }
    return CustomPolicy(lambda module: units.get(id(module), False))


def get_mixed_precision_wrap_policy(
    model: nn.Module, config: Any, base_policy: BasePolicy | None, default_mp: UnitPrecision | None = None
) -> Any:
    """Add the named wrappers of ``fsdp_config`` to a wrap policy of torch.

    Returns ``base_policy`` itself when there are none, else a policy that gives ``{"mixed_precision": ...}`` for units
    with a policy of their own and True for the others. ``base_policy`` None wraps nothing by itself; ``default_mp`` is
    the global precision, None that of the block ``mixed_precision``.

    Raises:
        WrapConfigError: a rule M1 to M16 is broken.
    """
    read = config.get if isinstance(config, dict) else lambda key: getattr(config, key, None)
    if not read("wrappers"):
        return base_policy
    base = base_policy or _wrap_nothing
    plan = resolve_wrap_plan(model, config, strategy="fsdp", precision=default_mp, base_policy=base)
    chosen: dict[int, bool | dict[str, Any]] = {}
    for unit, module in plan.modules(model):
        own = unit.policy is not None or isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        chosen[id(module)] = {"mixed_precision": mixed_precision_of(unit.precision)} if own else True
    return CustomPolicy(lambda module: chosen.get(id(module), False))


def _wrap_nothing(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
    return recurse
