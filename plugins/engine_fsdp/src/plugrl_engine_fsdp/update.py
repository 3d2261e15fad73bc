"""One optimizer update: norm, clipping, step, and what only an update that was applied moves."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from plugrl_engine_fsdp import checkpoint
from plugrl_engine_fsdp.fp32_master import FP32MasterAdamW
from plugrl_engine_fsdp.gradients import factor_to_norm

if TYPE_CHECKING:
    import torch

    from plugrl_engine_fsdp.engine import DataParallelEngine

_log = logging.getLogger(__name__)


def apply_update(engine: DataParallelEngine, optimizer: torch.optim.Optimizer, max_norm: float) -> float:
    """Clip over the whole mesh and step; returns the norm before clipping. Collective.

    A norm that is not finite skips the step, is counted and returned.
    """
    parameters = list(engine.module.parameters())
    norm = engine.layout.gradient_norm(parameters) / engine.loss_factor
    finite = math.isfinite(norm)
    if finite:
        unscale = 1.0 / engine.loss_factor
        if isinstance(optimizer, FP32MasterAdamW):
            # Gradients that were kept in fp16 would lose to zero, when unscaled in place, what the scale has saved.
            optimizer.gradient_factor = factor_to_norm(norm, max_norm, unscale)
        else:
            engine.layout.scale_gradients(parameters, norm, max_norm, unscale)
        optimizer.step()
        engine.updates += 1
        if engine.ema is not None:
            engine.ema.update(checkpoint.weights(engine))
    else:
        engine.skipped_steps += 1
        _log.warning("the gradient norm is %s: step skipped (%d so far)", norm, engine.skipped_steps)
        engine.optimizer_zero_grad()
    if engine.scaler is not None:
        engine.scaler.update(finite)
    return norm
