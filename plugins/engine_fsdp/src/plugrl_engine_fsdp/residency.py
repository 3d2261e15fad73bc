"""Where an engine's tensors lie: off-loaded between phases, on the device within them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from plugrl.models.moving import move_module
from plugrl.platforms import get_platform
from plugrl_engine_fsdp.memory import move_optimizer_state

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


@contextmanager
def training(engine: DataParallelEngine, *, auto_offload: bool, zero_grad_on_exit: bool) -> Iterator[None]:
    """Load what is off-loaded, train inside, off-load again; gradients are dropped on exit or after an error."""
    if auto_offload:
        load(engine, model=engine.is_param_offload_enabled, optimizer=engine.is_optimizer_offload_enabled)
    engine.module.train()
    failed = True
    try:
        yield
        failed = False
    finally:
        if failed:
            engine.layout.recover()
        if failed or zero_grad_on_exit:
            engine.optimizer_zero_grad()
        if auto_offload:
            offload(engine, model=engine.is_param_offload_enabled, optimizer=engine.is_optimizer_offload_enabled)


@contextmanager
def evaluation(engine: DataParallelEngine, *, auto_offload: bool) -> Iterator[None]:
    """Load off-loaded parameters, evaluate inside, off-load again.

    The optimizer state stays where it is, and so do the gradients of an accumulation window that is open.
    """
    if auto_offload:
        load(engine, model=engine.is_param_offload_enabled, optimizer=False)
    engine.module.eval()
    failed = True
    try:
        yield
        failed = False
    finally:
        if failed:
            engine.layout.recover(keep_gradients=True)
        if auto_offload:
            offload(engine, model=engine.is_param_offload_enabled, optimizer=False)


def move(engine: DataParallelEngine, device: torch.device, *, model: bool, optimizer: bool, grad: bool) -> None:
    """Move the named parts. ValueError for ``grad`` without ``model`` when there are gradients to move.

    The average of the weights, which only updates need, goes with the optimizer's state.
    """
    if model:
        if not grad:
            engine.optimizer_zero_grad()
        engine.layout.rest()
        engine.layout.leave()
        move_module(engine.module, device)
        engine.layout.moved()
    elif grad and not optimizer:
        raise ValueError("gradients move with their parameters: grad=True needs model=True")
    if optimizer and engine.optimizer is not None:
        move_optimizer_state(engine.optimizer, device)
        if engine.ema is not None:
            engine.ema.to(device)


def load(engine: DataParallelEngine, *, model: bool, optimizer: bool) -> None:
    """Bring what is off-loaded to the device."""
    if model or optimizer:
        engine.to(engine.device.type, model=model, optimizer=optimizer, grad=model)


def offload(engine: DataParallelEngine, *, model: bool, optimizer: bool) -> None:
    """Bring it to the host, and give the memory back."""
    if model or optimizer:
        engine.to("cpu", model=model, optimizer=optimizer, grad=model)
        get_platform().empty_cache()
