"""The state of a policy under FSDP1 as checkpoints see it, and the ends of a step that FSDP1 leaves to its hooks.

A sharded parameter is a piece of a flat one that respects no row, so its state is exchanged through torch's own state
dicts, which gather unit by unit and cut again into DTensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.tensor as dtensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._common_utils import HandleTrainingState, TrainingState
from torch.distributed.fsdp._runtime_utils import _reshard

from plugrl_engine_fsdp.layouts.base import OptimizerParameter, OptimizerState
from plugrl_engine_fsdp.names import clean_name, held_tensors


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A tensor before it was wrapped: the name that it has in checkpoints, its own first name, dtype and shape."""

    published: str
    name: str
    dtype: torch.dtype
    shape: torch.Size
    saved: bool


class StateNames:
    """The names of a policy's tensors, taken before FSDP1 flattens them."""

    def __init__(self, policy: Any) -> None:
        entries: dict[int, _Entry] = {}
        self._alias: dict[str, str] = {}
        self.dtypes: dict[str, tuple[torch.dtype, bool]] = {
            name: (parameter.dtype, parameter.requires_grad) for name, parameter in policy.named_parameters()
        }
        for name, tensor in held_tensors(policy):
            published = policy.published_name(name)
            known = entries.get(id(tensor))
            if known is None or (not known.saved and published is not None):
                entries[id(tensor)] = _Entry(
                    published=published or name,
                    name=name if known is None else known.name,
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    saved=published is not None,
                )
        for name, tensor in held_tensors(policy):
            self._alias[name] = entries[id(tensor)].published
        self._entries = {entry.name: entry for entry in entries.values()}

    # ----------------------------------------------------------------- weights
    def tensors(self, root: FSDP, *, views: bool) -> dict[str, torch.Tensor]:
        """Every published tensor once, buffers in their own dtype. ``views``: the policy's tensors themselves."""
        reshard(root)
        held = dict(held_tensors(root.module)) if views else _state_dict(root)
        found: dict[str, torch.Tensor] = {}
        for name, entry in self._entries.items():
            if entry.saved:
                tensor = held[name]
                found[entry.published] = tensor if tensor.dtype == entry.dtype else tensor.to(entry.dtype)
        return found

    def put_back(self, root: FSDP, tensors: Mapping[str, torch.Tensor], *, views: bool) -> None:
        """Write ``tensors``, some of those that :meth:`tensors` returned, where they are no views. Collective."""
        if views:
            held = dict(held_tensors(root.module))
            copies = ((held[name], tensors.get(entry.published)) for name, entry in self._entries.items())
            with torch.no_grad():
                for target, tensor in copies:
                    if tensor is not None and tensor is not target:
                        target.copy_(tensor)
            return
        state = _state_dict(root)
        root.load_state_dict({name: tensors.get(self._alias.get(name, name), own) for name, own in state.items()})

    # ----------------------------------------------------------------- optimizer
    def optimizer_parameters(
        self, root: FSDP, optimizer: torch.optim.Optimizer, mesh: DeviceMesh | None
    ) -> Iterator[OptimizerParameter]:
        """Yield each parameter's group and name, and an empty tensor laid out as its state; ``mesh`` None: whole."""
        names = _flat_names(root)
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                for name in names[id(parameter)]:
                    entry = self._entries[name]
                    yield index, entry.published, _empty(entry, mesh, parameter.device)

    def optimizer_state(self, root: FSDP, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """The state by published name. Collective."""
        state = FSDP.optim_state_dict(root, optimizer)["state"]
        return {
            self._alias[name]: {slot: torch.as_tensor(value) for slot, value in slots.items()}
            for name, slots in state.items()
            if slots
        }

    def load_optimizer_state(
        self, root: FSDP, optimizer: torch.optim.Optimizer, state: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> None:
        """Replace the state; parameters that ``state`` does not name are left without. Collective."""
        names = _flat_names(root)
        by_name = {name: dict(state[entry.published]) for name, entry in self._entries.items()
                   if entry.published in state}  # fmt: skip
        groups = [
            {**group, "params": [name for parameter in group["params"] for name in names[id(parameter)]]}
            for group in optimizer.param_groups
        ]
        optimizer.state.clear()
        whole = {"state": by_name, "param_groups": groups}
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(root, optimizer, whole))


def allow_kept_gradients(root: FSDP) -> None:
    """Let tied parameters hold gradients of another dtype.

    FSDP1 gives the second name of a tie the gradient of the first by an assignment that torch 2.13 checks, while it
    goes around that check everywhere else.
    """
    for module in FSDP.fsdp_modules(root):
        handle = module._handle
        if handle is not None and handle._keep_low_precision_grads and handle.flat_param._shared_params:
            for parameter in handle.flat_param._shared_params:
                parameter.grad_dtype = None


def choose_form(root: FSDP, *, sharded: bool) -> None:
    """Let state dicts hold DTensors where parameters are sharded, whole tensors on every rank otherwise."""
    if sharded:
        weights, optimizer = ShardedStateDictConfig(), ShardedOptimStateDictConfig()
        FSDP.set_state_dict_type(root, StateDictType.SHARDED_STATE_DICT, weights, optimizer)
    else:
        weights_, optimizer_ = FullStateDictConfig(), FullOptimStateDictConfig()
        FSDP.set_state_dict_type(root, StateDictType.FULL_STATE_DICT, weights_, optimizer_)


def _state_dict(root: FSDP) -> dict[str, torch.Tensor]:
    return {name: value for name, value in root.state_dict().items() if isinstance(value, torch.Tensor)}


def _empty(entry: _Entry, mesh: DeviceMesh | None, device: torch.device) -> torch.Tensor:
    if mesh is None:
        return torch.empty(entry.shape, dtype=entry.dtype, device=device)
    placements = [dtensor.Replicate()] * (mesh.ndim - 1) + [dtensor.Shard(0)]
    return dtensor.empty(entry.shape, dtype=entry.dtype, device_mesh=mesh, placements=placements)


def _flat_names(root: FSDP) -> dict[int, list[str]]:
    """``id(parameter)`` of the wrapped policy to the own names of what it stands for: several for a flat one."""
    names: dict[int, list[str]] = {}
    for name, parameter in root.module.named_parameters():
        names[id(parameter)] = [clean_name(name)]
    for path, module in root.named_modules():
        if isinstance(module, FSDP) and module._handle is not None:
            prefix = clean_name(path + "." if path else "")
            fqns = [f"{prefix}{fqn}" for fqn in module._handle.flat_param._fqns]
            names[id(module._handle.flat_param)] = list(dict.fromkeys(fqns))
    return names


# --------------------------------------------------------------------- the ends of a step
def reshard(root: FSDP) -> None:
    """Give back what a forward without backward left gathered."""
    for module in FSDP.fsdp_modules(root):
        handle = module._handle
        if handle is not None and handle.uses_sharded_strategy and not handle.is_sharded(handle.flat_param):
            _reshard(module, handle, True)


def reset(root: FSDP, *, keep_gradients: bool) -> None:
    """Bring every unit back to where a micro-batch begins, without a collective; gradients are dropped or kept.

    torch has nothing for this: its hooks run to their end or not at all.
    """
    for module in FSDP.fsdp_modules(root):
        module.training_state = TrainingState.IDLE
        handle = module._handle
        if handle is None:
            continue
        handle._training_state = HandleTrainingState.IDLE
        for name in ("_ran_pre_backward_hook", "_needs_pre_backward_unshard", "_prefetched"):
            setattr(handle, name, False)
        handle._post_forward_index = None
        flat = handle.flat_param
        if hasattr(flat, "_post_backward_hook_state"):
            flat._post_backward_hook_state[-1].remove()
            del flat._post_backward_hook_state
        if hasattr(flat, "_post_backward_hook_handle"):
            flat._post_backward_hook_handle.remove()
            del flat._post_backward_hook_handle
        if hasattr(flat, "_saved_grad_shard") and not keep_gradients:
            del flat._saved_grad_shard
        flat._post_backward_called = False  # type: ignore[attr-defined]
        _reshard(module, handle, handle.uses_sharded_strategy)
        if not keep_gradients:
            flat.grad = None
    if not keep_gradients:
        for parameter in root.parameters():
            parameter.grad = None
    if root._exec_order_data is not None:
        root._exec_order_data.next_iter()
    root._post_backward_callback_queued = False  # type: ignore[assignment]
