"""Which dtype weights are kept in, computed in and reduced in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plugrl.errors import ConfigError
from plugrl.platforms.base import PlatformBase
from plugrl_engine_fsdp.config import FsdpConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """``weights``: as stored and updated; ``compute``: in forward and backward; ``reduce``: gradients over ranks."""

    weights: torch.dtype
    compute: torch.dtype
    reduce: torch.dtype

    @property
    def is_mixed(self) -> bool:
        """Whether compute needs another dtype than the weights have."""
        return self.compute != self.weights


def resolve_precision(
    config: FsdpConfig, model_precision: str | None, trainable: bool, platform: PlatformBase
) -> Precision:
    """Decide the dtypes. ``mixed_precision`` goes before ``dtype``, then the model's precision, then the platform's."""
    asked = config.mixed_precision.param_dtype if config.mixed_precision else config.dtype
    if asked == "auto" and model_precision not in (None, "auto"):
        asked = str(model_precision)
    if asked == "auto":
        asked = platform.preferred_dtype()
    if asked not in _DTYPES:
        raise ConfigError(f"model.precision: the fsdp2 and ddp engines compute in fp32 or bf16, not in {asked!r}")
    compute = _DTYPES[asked]
    reduce = _DTYPES[config.mixed_precision.reduce_dtype if config.mixed_precision else "fp32"]
    if config.model_dtype is not None:
        weights = _DTYPES[config.model_dtype]
    else:
        weights = torch.float32 if trainable else compute
    return Precision(weights=weights, compute=compute, reduce=reduce)
