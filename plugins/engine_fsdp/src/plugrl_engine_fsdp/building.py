"""The policy as it is before a layout spreads it, and its weights on their way to the ranks.

Every rank builds a policy with its weights, and takes over those of rank 0. Where a layout cuts units one after the
other from the host (``Layout.spreads_from_host``), no device ever holds a whole model, and ranks other than 0 build
theirs without weights if its builder can: the host then holds one copy, and one rank reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from plugrl.checkpoints.source import regions_of
from plugrl.errors import ConfigError, one_line
from plugrl.models.factory import get_model, get_model_skeleton
from plugrl.models.moving import move_module, replace_tensor
from plugrl_engine_fsdp.distributed import gather_objects, rank, replicate_from_first_rank, world_size
from plugrl_engine_fsdp.precision import Precision, adapter_precision


@dataclass(frozen=True, kw_only=True)
class Built:
    """A policy in eval or train mode, with the precision in which it computes.

    ``awaits_weights``: whether :func:`hand_out_weights` is still to be called once the policy is spread. ``weights``:
    on rank 0 of such a policy the whole tensors by name, on the host.
    """

    policy: nn.Module
    precision: Precision
    awaits_weights: bool = False
    weights: Mapping[str, torch.Tensor] | None = None


def build_policy(
    model_config: Any, precision: Precision, *, trainable: bool, device: torch.device, from_host: bool
) -> Built:
    """Build the policy. Collective.

    ``from_host``: the layout takes it from the host, and weights are handed out after that; otherwise it lies on
    ``device``, equal on all ranks.

    Raises:
        UserError: the model cannot be built, or another rank built another model.
    """
    if from_host and world_size() > 1:
        policy = _build_on_first_rank(model_config, precision)
    else:
        policy = get_model(model_config, torch_dtype=precision.weights)
    if not from_host:
        move_module(policy, device)
    if not trainable:
        policy.requires_grad_(False)
    elif _read(model_config, "enable_gradient_checkpointing"):
        _enable_gradient_checkpointing(policy)
    if trainable and policy.adapter_config() is not None:
        precision = adapter_precision(policy, precision)
    policy.train(trainable)
    if not from_host:
        replicate_from_first_rank(policy)
        return Built(policy=policy, precision=precision)
    weights = {name: tensor.detach() for name, tensor in _tensors(policy)} if rank() == 0 else None
    return Built(policy=policy, precision=precision, awaits_weights=True, weights=weights)


# --------------------------------------------------------------------- with weights on rank 0 alone
@dataclass(frozen=True)
class _Report:
    """What a rank tells the others of the policy it built: why it has none, or what can be compared."""

    failure: str | None
    tensors: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)


def _build_on_first_rank(model_config: Any, precision: Precision) -> Any:
    """Build with weights on rank 0 and without elsewhere, or with them where that gives another policy."""
    build = get_model if rank() == 0 else get_model_skeleton
    policy, reports = _build_together(lambda: build(model_config, torch_dtype=precision.weights))
    first = reports[0]
    is_outline = any(tensor.is_meta for _, tensor in _tensors(policy))
    if is_outline:
        policy.take_measured(first.measured)
    again = is_outline and not _is_sound(policy, first)
    policy, reports = _build_together(
        lambda: get_model(model_config, torch_dtype=precision.weights) if again else policy
    )
    for index, report in enumerate(reports):
        differing = sorted({*report.tensors} ^ {*reports[0].tensors})
        if differing:
            raise ConfigError(
                f"model: rank {index} built another model than rank 0; they differ in {', '.join(differing[:3])}"
            )
    return policy


def _build_together(build: Callable[[], Any]) -> tuple[Any, list[_Report]]:
    """Call ``build`` on every rank; returns what it gave, and all reports. When one rank fails, all do."""
    error: Exception | None = None
    policy: Any = None
    try:
        policy = build()
    except Exception as fault:  # told to the other ranks first: they would wait for this one
        error = fault
    reports: list[_Report] = gather_objects(_report(policy) if error is None else _Report(one_line(error)))
    if error is not None:
        raise error
    failed = next((index for index, report in enumerate(reports) if report.failure is not None), None)
    if failed is not None:
        raise ConfigError(f"rank {failed} cannot build the model: {reports[failed].failure}")
    return policy, reports


def _report(policy: Any) -> _Report:
    tensors = tuple(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in _tensors(policy))
    # Of other modules than the policy what is private is left out: libraries note there what they have initialised.
    values = tuple(
        f"{path}.{name}={value!r}" for path, module in policy.named_modules() for name, value in vars(module).items()
        if (not path or not name.startswith("_")) and (value is None or isinstance(value, bool | int | float | str))
    )  # fmt: skip
    return _Report(None, tensors, values, policy.measured())


def _is_sound(outline: Any, first: _Report) -> bool:
    """Whether a policy without weights is what rank 0 built, and parameters and buffers are all that it lacks."""
    mine = _report(outline)
    return (mine.tensors, mine.values) == (first.tensors, first.values) and not any(
        tensor.is_meta for tensor in _hidden_tensors(outline)
    )


def _hidden_tensors(policy: nn.Module) -> Iterator[torch.Tensor]:
    """Tensors that modules hold as plain attributes."""
    for module in policy.modules():
        values = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}
        yield from (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


@torch.no_grad()
def hand_out_weights(built: Built, *, device: torch.device, shards_rest_on: torch.device) -> None:
    """Give every rank its part of rank 0's weights, tensor by tensor, once the layout has cut the policy. Collective.

    Afterwards whole tensors lie on ``device`` and shards on ``shards_rest_on``.
    """
    if not built.awaits_weights:
        return
    policy = built.policy
    for _, tensor in _tensors(policy):
        if not isinstance(tensor, DTensor) and tensor.device.type != device.type:
            replace_tensor(tensor, torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device))
    if any(tensor.is_meta for tensor in policy.parameters()):
        # to_empty() for shards alone: it would part tensors that modules share.
        policy._apply(lambda tensor: torch.empty_like(tensor, device=shards_rest_on) if tensor.is_meta else tensor)
    if world_size() == 1:
        return
    for name, tensor in _tensors(policy):
        if built.weights is not None:
            whole = built.weights[name].to(device).contiguous()
        else:
            whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        dist.broadcast(whole, src=0)
        for (offsets, sizes), memory in regions_of(tensor):
            memory.copy_(whole[tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))])


def _tensors(policy: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and buffer once, also those that are not saved, in the order of definition."""
    yield from policy.named_parameters()
    yield from policy.named_buffers()


def _read(config: Any, key: str) -> Any:
    return config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def _enable_gradient_checkpointing(policy: nn.Module) -> None:
    """Ask the policy; one without the method read the key when it was built."""
    enable = getattr(policy, "gradient_checkpointing_enable", None)
    if callable(enable):
        enable()
