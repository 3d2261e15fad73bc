"""One walk through a batch: micro-batches forward and, in training, backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from plugrl.engines.base import Batch, BatchOptions, BatchResult, LossContext, LossFunction
from plugrl.engines.batching import split_micro_batches
from plugrl.metric import Metric
from plugrl_engine_fsdp.distributed import agree_on_batch
from plugrl_engine_fsdp.walk import Walk, zero_loss

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


def run_batch(
    engine: DataParallelEngine,
    data: Batch,
    loss_function: LossFunction | None,
    options: BatchOptions,
    *,
    forward_only: bool,
) -> BatchResult:
    """Walk through ``data``; in training leave gradients behind. Collective.

    One collective precedes the micro-batches, none lies between them.
    """
    layout = engine.layout
    agreed = agree_on_batch(data, options, engine.device)
    micro_batches = split_micro_batches(data, options, count=agreed.micro_batches)
    walk = Walk()
    for index, micro in enumerate(micro_batches):
        inputs = {name: tensor.to(engine.device, non_blocking=True) for name, tensor in micro.data.items()}
        if forward_only:
            with torch.no_grad():
                outputs = _forward(engine, inputs, options, training=False)
                loss, metrics = _loss(loss_function, outputs, inputs, agreed.context, micro.is_dummy)
            walk.add(micro, outputs, loss, metrics)
        else:
            last = index == len(micro_batches) - 1 and options.closes_window
            with layout.gradient_sync(last=last):
                outputs = _forward(engine, inputs, options, training=True)
                loss, metrics = _loss(loss_function, outputs, inputs, agreed.context, micro.is_dummy)
                (loss * (engine.loss_factor / options.window)).backward()
            walk.add(micro, None, loss, metrics)
    if forward_only:
        layout.rest()
    return walk.result()


def _forward(
    engine: DataParallelEngine, inputs: Mapping[str, torch.Tensor], options: BatchOptions, *, training: bool
) -> dict[str, Any]:
    with engine.layout.compute_context():
        return engine.layout.callable_module(training)(
            forward_type=options.forward_type, forward_inputs=inputs, **options.forward_kwargs
        )


def _loss(
    loss_function: LossFunction | None,
    outputs: Mapping[str, torch.Tensor],
    inputs: Batch,
    context: LossContext,
    dummy: bool,
) -> tuple[Any, dict[str, Metric]]:
    if dummy:
        return zero_loss(outputs), {}
    return (None, {}) if loss_function is None else loss_function(outputs, inputs, context)
