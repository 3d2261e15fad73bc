"""Where an engine's tensors lie: off-loaded between phases, on the device within them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from plugrl.models.moving import move_module
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.memory import move_optimizer_state

if TYPE_CHECKING:
    from plugrl_engine_megatron.engine import MegatronEngine


@contextmanager
def training(engine: MegatronEngine, *, auto_offload: bool, zero_grad_on_exit: bool) -> Iterator[None]:
    """Load what is off-loaded, train inside, off-load again; gradients are dropped on exit or after an error."""
    if auto_offload:
        _load(engine, model=engine.is_param_offload_enabled, optimizer=engine.is_optimizer_offload_enabled)
    engine.module.train()
    failed = True
    try:
        yield
        failed = False
    finally:
        if failed or zero_grad_on_exit:
            engine.optimizer_zero_grad()
        if auto_offload:
            offload(engine, model=engine.is_param_offload_enabled, optimizer=engine.is_optimizer_offload_enabled)


@contextmanager
def evaluation(engine: MegatronEngine, *, auto_offload: bool) -> Iterator[None]:
    """Load off-loaded weights, evaluate inside, off-load again."""
    if auto_offload:
        _load(engine, model=engine.is_param_offload_enabled, optimizer=False)
    engine.module.eval()
    try:
        yield
    finally:
        if auto_offload:
            offload(engine, model=engine.is_param_offload_enabled, optimizer=False)


def move(engine: MegatronEngine, device: torch.device, *, model: bool, optimizer: bool) -> None:
    """Move the named parts. Weights that are trained lie in megatron-core's buffers, which go as a whole."""
    if engine.device.type == "cpu":
        return
    away = device.type == "cpu"
    if model and engine.optimizer is None:
        move_module(engine.module, device)
    elif model:
        for buffer in _buffers(engine):
            if away:
                buffer.offload_to_cpu()
            else:
                buffer.reload_from_cpu()
    if optimizer and engine.optimizer is not None:
        for one in engine.optimizer.chained_optimizers:
            if one.optimizer is not None:
                move_optimizer_state(one.optimizer, device)


def _buffers(engine: MegatronEngine) -> Iterator[Any]:
    for chunk in engine.chunks:
        yield from chunk.buffers
        yield from chunk.expert_parallel_buffers


def _load(engine: MegatronEngine, *, model: bool, optimizer: bool) -> None:
    if model or optimizer:
        engine.to(engine.device.type, model=model, optimizer=optimizer, grad=model)


def offload(engine: MegatronEngine, *, model: bool, optimizer: bool) -> None:
    """Bring to the host what is named, and give the memory back."""
    if model or optimizer:
        engine.to("cpu", model=model, optimizer=optimizer, grad=model)
        get_platform().empty_cache()
