"""The layout ``fsdp``: torch's FullyShardedDataParallel (FSDP1), for the precision of single units and kept gradients.

Every unit is flattened into one parameter. With ``use_orig_params`` the policy still holds its own parameters, as views
into this rank's piece of the flat one; checkpoints see them whole or as DTensors, see :mod:`.fsdp1_state`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from plugrl.errors import ConfigError
from plugrl_engine_fsdp.distributed import ensure_process_group
from plugrl_engine_fsdp.gradients import LocalGradients, global_norm, local_gradients
from plugrl_engine_fsdp.ignored import IgnoredParameters
from plugrl_engine_fsdp.layouts import fsdp1_state
from plugrl_engine_fsdp.layouts.base import Layout, OptimizerParameter, OptimizerState
from plugrl_engine_fsdp.layouts.fsdp2 import MESH_NAMES, log_notices, make_mesh
from plugrl_engine_fsdp.precision import DTYPES, unit_precision
from plugrl_engine_fsdp.topology import sharding_strategy
from plugrl_engine_fsdp.wrapping import WrapPlan, resolve_wrap_plan
from plugrl_engine_fsdp.wrapping.gradients import check_gradient_dtypes
from plugrl_engine_fsdp.wrapping.policy import mixed_precision_of, unit_policy
from plugrl_engine_fsdp.wrapping.watch import UnitWatch

_STRATEGIES = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "no_shard": ShardingStrategy.NO_SHARD,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
}
_PREFETCH = {"pre": BackwardPrefetch.BACKWARD_PRE, "post": BackwardPrefetch.BACKWARD_POST, None: None}


class Fsdp1Layout(Layout):
    """torch's FSDP1 around the policy; the policy's submodules that are units are replaced by wrappers."""

    name = "fsdp"
    has_units = True
    _policy: torch.nn.Module
    _root: FSDP

    def spread(self, policy: torch.nn.Module) -> None:
        """Wrap ``policy`` and its units."""
        self._policy = policy
        self.strategy = sharding_strategy(self.config, self.context.topology)
        if self.config.cpu_offload and self.context.device.type == "cpu":
            raise ConfigError(
                "fsdp_config.cpu_offload: FSDP1 needs an accelerator beside the host; leave it out or take fsdp2"
            )
        self.plan = plan = self.resolve_plan(policy)
        self._ignored = IgnoredParameters(policy, plan.ignored)
        self._ignored.compute_as(plan, self.context.device)
        self._state = fsdp1_state.StateNames(policy)
        self.watch = UnitWatch((unit.path, module) for unit, module in plan.modules(policy))
        ensure_process_group()
        with _quiet():
            self.mesh = self._make_mesh()
            self._root = FSDP(
                policy,
                auto_wrap_policy=unit_policy(plan, policy),
                mixed_precision=mixed_precision_of(plan.root.precision),
                sharding_strategy=_STRATEGIES[self.strategy],
                device_mesh=self.mesh,
                # Without a device FSDP1 looks for an accelerator, also where there is none.
                device_id=self.context.device,
                ignored_states=self._ignored.modules or None,
                use_orig_params=self.config.use_orig_params,
                forward_prefetch=self.config.forward_prefetch,
                backward_prefetch=_PREFETCH[self.config.backward_prefetch],
                limit_all_gathers=self.config.limit_all_gathers,
                cpu_offload=CPUOffload(offload_params=True) if self.config.cpu_offload else None,
            )
            fsdp1_state.allow_kept_gradients(self._root)
            fsdp1_state.choose_form(self._root, sharded=self.is_sharded)

    def resolve_plan(self, policy: torch.nn.Module) -> WrapPlan:
        """The units of ``policy``, which is not yet wrapped."""
        precision = unit_precision(self.config, self.context.precision)
        return log_notices(
            resolve_wrap_plan(policy, self.config, strategy="fsdp", precision=precision, shards=self.is_sharded)
        )

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds less than a whole copy: one rank holds all, and so does each under no_shard."""
        return self.context.topology.is_sharded

    def _make_mesh(self) -> Any:
        """One dimension of all ranks; copies and shards for hybrid_shard. Collective."""
        topology = self.context.topology
        if topology.is_sharded:
            return make_mesh(self.context.device, topology)
        return dist.device_mesh.init_device_mesh(
            self.context.device.type, (topology.dp_world_size,), mesh_dim_names=MESH_NAMES[:1]
        )

    # ----------------------------------------------------------------- forward and backward
    def callable_module(self, training: bool) -> torch.nn.Module:
        """The outermost wrapper."""
        return self._root

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """Without ``last`` gradients stay whole on their rank; with it they are reduced."""
        with nullcontext() if last else self._root.no_sync():
            yield
        if last:
            self._ignored.average_gradients()

    def compute_context(self) -> AbstractContextManager[Any]:
        """``amp_autocast`` where it is on; otherwise nothing, since units cast by themselves."""
        autocast = self.config.amp_autocast
        if not autocast.enabled:
            return nullcontext()
        return torch.autocast(self.context.device.type, dtype=DTYPES[autocast.precision])

    def rest(self) -> None:
        """Free every gathered parameter, so that what is read, written or moved is this rank's piece."""
        fsdp1_state.reshard(self._root)

    def recover(self, *, keep_gradients: bool = False) -> None:
        """Forget the step that an exception cut short and, unless they are to be kept, all gradients."""
        fsdp1_state.reset(self._root, keep_gradients=keep_gradients)

    # ----------------------------------------------------------------- gradients
    @property
    def takes_fp32_masters(self) -> bool:
        """Under no_shard, where gradients may be kept in a low dtype and parameters are whole."""
        return self.strategy == "no_shard" or not self.is_sharded

    def check_native_adamw(self, policy: torch.nn.Module) -> None:
        """Raise ConfigError when units keep gradients in another dtype than their parameters have."""
        check_gradient_dtypes(
            self._state.dtypes, self.plan, sharded=self.is_sharded, cpu_offload=self.config.cpu_offload
        )

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold one copy together."""
        return self.mesh[MESH_NAMES[1]].get_group() if self.is_sharded else None

    def gradient_norm(self, parameters: Iterable[torch.nn.Parameter]) -> float:
        """2-norm of the whole gradient in fp32; pieces are plain tensors, and ignored parameters are whole."""
        given = [parameter for parameter in parameters if parameter.grad is not None]
        if not self.is_sharded:
            return global_norm(local_gradients(given), None, self.context.device)
        pieces = local_gradients(parameter for parameter in given if parameter not in self._ignored.parameters)
        whole = local_gradients(parameter for parameter in given if parameter in self._ignored.parameters)
        return global_norm(LocalGradients(pieces.all, whole.all), self.shard_group, self.context.device)

    # ----------------------------------------------------------------- state
    def named_tensors(self, policy: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Every parameter and persistent buffer once; sharded ones are copies as DTensors. Collective."""
        return self._state.tensors(self._root, views=self._holds_whole_parameters)

    def loaded(self, policy: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put back what was read into copies. Collective."""
        self._state.put_back(self._root, tensors, views=self._holds_whole_parameters)

    def optimizer_parameters(
        self, policy: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> Iterator[OptimizerParameter]:
        """As in the base; the tensors only say how the state of a sharded parameter is laid out."""
        if self._holds_whole_parameters:
            yield from super().optimizer_parameters(policy, optimizer)
        else:
            yield from self._state.optimizer_parameters(self._root, optimizer, self.mesh if self.is_sharded else None)

    def optimizer_state(self, policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> OptimizerState:
        """The optimizer's state by published name, as DTensors where it is sharded. Collective."""
        if self._holds_whole_parameters:
            return super().optimizer_state(policy, optimizer)
        return self._state.optimizer_state(self._root, optimizer)

    def load_optimizer_state(
        self, policy: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Mapping[str, torch.Tensor]]
    ) -> None:
        """Replace the optimizer's state. Collective."""
        if self._holds_whole_parameters:
            super().load_optimizer_state(policy, optimizer, state)
        else:
            self._state.load_optimizer_state(self._root, optimizer, state)

    @property
    def _holds_whole_parameters(self) -> bool:
        """Whether the policy's own parameters can be read and written as they are."""
        return self.config.use_orig_params and not self.is_sharded


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's advice to use other classes, which whoever chose this layout has turned down already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*NO_SHARD.*", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*switch.*NO_SHARD.*")
        warnings.filterwarnings("ignore", message="Both mixed precision and an auto_wrap_policy.*")
        warnings.filterwarnings("ignore", message="FSDP.state_dict_type.*", category=FutureWarning)
        yield
