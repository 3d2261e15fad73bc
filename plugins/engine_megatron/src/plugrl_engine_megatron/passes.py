"""One walk through a batch by megatron-core's schedules: micro-batches through the stages of a pipeline and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from plugrl.engines.base import Batch, BatchOptions, BatchResult, LossContext, LossFunction
from plugrl.engines.batching import MicroBatch, num_micro_batches, split_micro_batches
from plugrl.metric import Metric
from plugrl_engine_fsdp.walk import Walk, zero_loss
from plugrl_engine_megatron.library import finalize_model_grads, get_forward_backward_func, parallel_state
from plugrl_engine_megatron.parallel import Place
from plugrl_engine_megatron.rows import Rows, make_rows

_FAULT = -1
_FORWARDS = ("default", "sft")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Item:
    """A micro-batch on its way. inputs: its tensors on the device."""

    micro: MicroBatch
    inputs: dict[str, torch.Tensor]
    rows: Rows


def run_batch(
    chunks: Sequence[Any],
    data: Batch,
    loss_function: LossFunction | None,
    options: BatchOptions,
    *,
    place: Place,
    multiple: int,
    device: torch.device,
    forward_only: bool,
) -> BatchResult:
    """Walk through ``data``; in training leave gradients behind, averaged when the window closes. Collective.

    All ranks that share a model return the same.
    """
    count, context = _agree(data, options, device)
    if len(chunks) > 1:  # virtual stages take micro-batches in groups; what is lacking are dummies
        count = -(-count // place.num_stages) * place.num_stages
    items = [_item(micro, place, multiple, device) for micro in split_micro_batches(data, options, count=count)]
    walk, forward = Walk(), _forward_options(options)
    settings = chunks[0].config
    settings.finalize_model_grads_func = (
        partial(finalize_model_grads) if not forward_only and options.closes_window else None
    )

    def finish(item: _Item, outputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, None]:
        loss, metrics = _loss(loss_function, outputs, item, context)
        walk.add(item.micro, outputs if forward_only else None, loss, metrics)
        if loss is None:
            return torch.zeros((), device=device), None
        # The schedule takes the mean over micro-batches and multiplies by the ranks of a context.
        return loss * (len(items) / options.window), None

    def step(feed: Iterator[_Item], chunk: Any) -> tuple[Any, Any]:
        item = next(feed)
        return chunk(item.rows, **forward), partial(finish, item)

    feeds = [iter(items) for _ in chunks]
    longest = max(item.rows.length for item in items)
    with torch.no_grad() if forward_only else nullcontext():
        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=feeds if len(chunks) > 1 else feeds[0],
            model=list(chunks),
            num_microbatches=len(items),
            seq_length=longest,
            micro_batch_size=max(item.rows.tokens.shape[0] for item in items),
            forward_only=forward_only,
        )
    return _shared(walk.result(), place)


def _item(micro: MicroBatch, place: Place, multiple: int, device: torch.device) -> _Item:
    inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in micro.data.items()}
    rows = make_rows(inputs, multiple=multiple, context=place.context, context_size=place.context_size)
    return _Item(micro=micro, inputs=inputs, rows=rows)


def _forward_options(options: BatchOptions) -> dict[str, Any]:
    """What the last stage is told. Raises ValueError for a forward that this engine does not run."""
    if options.forward_type not in _FORWARDS:
        raise ValueError(f"the megatron engine runs the forwards {', '.join(_FORWARDS)}, not {options.forward_type!r}")
    found = {name: value for name, value in options.forward_kwargs.items() if name != "compute_values"}
    return {**found, "temperature": 1.0} if options.forward_type == "sft" else found


def _loss(
    loss_function: LossFunction | None, outputs: Mapping[str, torch.Tensor], item: _Item, context: LossContext
) -> tuple[Any, dict[str, Metric]]:
    if item.micro.is_dummy:
        return zero_loss(outputs), {}
    return (None, {}) if loss_function is None else loss_function(outputs, item.inputs, context)


def _shared(result: BatchResult, place: Place) -> BatchResult:
    """Tell outputs, loss and metrics of the last stage, numbers per token at most, to the others."""
    if place.num_stages == 1:
        return result
    told: list[Any] = [result]
    source = parallel_state.get_pipeline_model_parallel_last_rank()
    dist.broadcast_object_list(told, src=source, group=parallel_state.get_pipeline_model_parallel_group())
    found: BatchResult = told[0]
    return found


def _agree(data: Batch, options: BatchOptions, device: torch.device) -> tuple[int, LossContext]:
    """Return the number of micro-batches of all ranks and what losses need to know of the whole batch.

    A batch that one rank cannot cut raises on all ranks, so that none waits for it. Collective.
    """
    fault: ValueError | None = None
    try:
        count = num_micro_batches(data, options)
    except ValueError as error:
        fault, count = error, _FAULT
    mask = data.get("response_mask")
    if mask is None:
        rows = next(iter(data.values())).shape[0] if data else 0
        own = [rows, rows, count]
    else:
        valid = mask.to(torch.bool)
        own = [int(valid.sum()), int(valid.flatten(1).any(dim=1).sum()), count]
    group = parallel_state.get_data_parallel_group()
    size = group.size()
    table = torch.tensor([own], dtype=torch.int64, device=device)
    if size > 1:
        everyone = table.new_empty((size, 3))
        dist.all_gather_single(everyone, table, group=group)
        table = everyone
    table = table.cpu()
    if fault is not None:
        raise fault
    if bool((table[:, 2] == _FAULT).any()):
        raise ValueError("another rank cannot cut its batch into micro-batches; see its error")
    tokens, rows = table[:, :2].sum(dim=0).tolist()
    return int(table[:, 2].max()), LossContext(dp_size=size, batch_num_tokens=tokens, global_batch_size=rows)
