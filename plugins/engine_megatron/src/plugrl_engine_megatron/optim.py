"""megatron-core's optimizer under PlugRL's settings, and one update of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch

from plugrl.errors import ConfigError
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.gradients import factor_to_norm
from plugrl_engine_fsdp.optim import OptimizerSettings
from plugrl_engine_megatron.bridges import sortable_types
from plugrl_engine_megatron.config import MegatronConfig
from plugrl_engine_megatron.library import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    OptimizerConfig,
    ParamGroupOverride,
    ParamKey,
    get_megatron_optimizer,
)

_log = logging.getLogger(__name__)
_SCORE = "*score.*"


def check_settings(settings: OptimizerSettings) -> None:
    """Raise ConfigError for settings that this engine does not have."""
    for name in ("lr_multipliers", "use_fp32_master_params"):
        if getattr(settings, name):
            raise ConfigError(f"optim.{name}: the megatron engine does not have it; leave it out, or use fsdp2")


def with_gradients(stages: Sequence[Any], config: MegatronConfig) -> list[Any]:
    """Wrap the stages so that gradients are kept in fp32 and averaged over data-parallel ranks."""
    return [
        DistributedDataParallel(
            stage.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=config.use_distributed_optimizer
            ),
            stage,
            disable_bucketing=index > 0,
        )
        for index, stage in enumerate(stages)
    ]


def build_optimizer(chunks: Sequence[Any], config: MegatronConfig, settings: OptimizerSettings, dtype: Any) -> Any:
    """AdamW over all parameters, with decay of all of them as the other engines have it. Collective."""
    overrides = {}
    if settings.value_lr is not None:
        overrides[ParamKey(name=_SCORE)] = ParamGroupOverride(max_lr=settings.value_lr)
    options = OptimizerConfig(
        optimizer="adam",
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_eps=settings.eps,
        clip_grad=0.0,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=config.use_distributed_optimizer,
    )
    parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
    with sortable_types(get_platform(), parameters):
        optimizer = get_megatron_optimizer(
            options, list(chunks), config_overrides=overrides, use_gloo_process_groups=False
        )
    for group in optimizer.param_groups:
        group["lr"] = group["max_lr"]
    return optimizer


@torch.no_grad()
def update(optimizer: Any, max_norm: float) -> float:
    """Clip over all ranks and step; returns the norm before clipping. A norm that is not finite steps nothing."""
    optimizer.prepare_grads()
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return norm
    factor = factor_to_norm(norm, max_norm)
    if factor != 1.0:
        gradients = [parameter.grad for one in optimizer.chained_optimizers if one.optimizer is not None
                     for parameter in one.get_parameters() if parameter.grad is not None]  # fmt: skip
        if gradients:
            torch._foreach_mul_(gradients, factor)
    optimizer.step_with_ready_grads()
    return norm
