"""Which dtype weights are kept in, computed in and reduced in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from plugrl.errors import ConfigError
from plugrl.platforms.base import PlatformBase
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import UnitPrecision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """``weights``: as stored and updated; ``compute``: in forward and backward; ``reduce``: gradients over ranks."""

    weights: torch.dtype
    compute: torch.dtype
    reduce: torch.dtype
    fp16_inside: bool = False
    """Whether autocast or the policy of single units computes in fp16, whatever ``compute`` is."""

    @property
    def needs_loss_scale(self) -> bool:
        """Whether small gradients would vanish: fp16 has five bits of exponent."""
        return self.compute == torch.float16 or self.fp16_inside

    @property
    def is_mixed(self) -> bool:
        """Whether compute needs another dtype than the weights have."""
        return self.compute != self.weights


def resolve_precision(
    config: FsdpConfig, model_precision: str | None, trainable: bool, platform: PlatformBase
) -> Precision:
    """Decide the dtypes: ``mixed_precision_policy``, ``mixed_precision``, ``dtype``, the model's, the platform's.

    Raises ConfigError for a dtype that is not one of them, and for fp16 without a loss scale.
    """
    policy, block = config.mixed_precision_policy.param_dtype, config.mixed_precision
    # A block without a dtype leaves compute in that of the weights.
    asked: str = policy or ((block.param_dtype or config.model_dtype or "fp32") if block else config.dtype)
    if policy == "fp16" and config.dtype != "fp16":
        raise ConfigError(
            "fsdp_config.mixed_precision_policy.param_dtype: fp16 needs a loss scale: give dtype (or "
            "accelerator.mixed_precision) fp16 as well"
        )
    if asked == "auto" and model_precision not in (None, "auto"):
        asked = str(model_precision)
    if asked == "auto":
        asked = platform.preferred_dtype()
    if asked not in DTYPES:
        raise ConfigError(f"model.precision: this engine computes in fp32, bf16 or fp16, not in {asked!r}")
    compute = DTYPES[asked]
    reduce = torch.float32 if block is None else DTYPES[block.reduce_dtype] if block.reduce_dtype else compute
    if config.model_dtype is not None:
        weights = DTYPES[config.model_dtype]
    else:
        weights = torch.float32 if trainable else compute
    autocast, policies = config.amp_autocast, config.mixed_precision_policies
    fp16_inside = (autocast.enabled and autocast.precision == "fp16") or any(
        policies[name].param_dtype == "fp16" for name in config.mixed_precision_rules.values()
    )
    return Precision(weights=weights, compute=compute, reduce=reduce, fp16_inside=fp16_inside)


def adapter_precision(policy: torch.nn.Module, precision: Precision) -> Precision:
    """Make all that is trained beside frozen weights fp32; returns the precision in which that trains.

    The frozen weights keep their dtype. Raises ConfigError where compute in fp32 would meet weights of another dtype.
    """
    if precision.weights != torch.float32 and precision.compute == torch.float32:
        raise ConfigError(
            "fsdp_config.model_dtype: an adapter is fp32, and frozen weights of another dtype go with it in mixed "
            "precision alone: set accelerator.mixed_precision (fsdp_config.dtype) to bf16, or leave model_dtype out"
        )
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return replace(precision, weights=torch.float32)


def unit_precision(config: FsdpConfig, precision: Precision) -> UnitPrecision:
    """Return the precision of the units that have no policy of their own, as FSDP casts them.

    With ``amp_autocast`` alone nothing is cast, since autocast is around the forward.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    if config.mixed_precision is not None:
        block = config.mixed_precision.precision
        if config.mixed_precision.param_dtype == "auto":
            return replace(block, param_dtype=names[precision.compute])
        return block
    if config.amp_autocast.enabled or not precision.is_mixed:
        return UnitPrecision()
    return UnitPrecision(param_dtype=names[precision.compute], reduce_dtype=names[precision.reduce])
