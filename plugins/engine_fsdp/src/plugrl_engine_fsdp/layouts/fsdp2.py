"""The layout ``fsdp2``: torch's ``fully_shard`` over all ranks, or (HSDP) over the ranks of each copy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from plugrl.engines.topology import Topology
from plugrl.models.moving import replace_tensor
from plugrl_engine_fsdp.ignored import IgnoredParameters
from plugrl_engine_fsdp.layouts.base import Layout
from plugrl_engine_fsdp.precision import DTYPES, unit_precision
from plugrl_engine_fsdp.wrapping import WrapPlan, WrapUnit, resolve_wrap_plan
from plugrl_engine_fsdp.wrapping.watch import UnitWatch

_log = logging.getLogger(__name__)
MESH_NAMES = ("dp_replicate", "dp_shard")


class Fsdp2Layout(Layout):
    """Parameters, gradients and optimizer state sharded, gathered unit by unit in a forward."""

    name = "fsdp2"
    has_units = True
    spreads_from_host = True
    _policy: torch.nn.Module

    @property
    def shards_rest_on(self) -> torch.device:
        """The host under ``cpu_offload``."""
        return torch.device("cpu") if self.config.cpu_offload else self.context.device

    def spread(self, policy: torch.nn.Module) -> None:
        """Shard ``policy`` in place, its units first, then the rest as the root unit."""
        self._policy = policy
        plan = self.plan(policy)
        self._ignored = IgnoredParameters(policy, plan.ignored)
        self._ignored.compute_as(plan, self.context.device)
        self.mesh = make_mesh(self.context.device, self.context.topology)
        options: dict[str, Any] = {"mesh": self.mesh, "ignored_params": self._ignored.parameters}
        if self.config.cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=self.config.offload_pin_memory)
        self._warn_of_buffers(plan)
        inner, outer = self._policies()
        for unit, module in plan.modules(policy):
            own = inner if unit.policy is None else self._named_policy(plan, unit)
            self._take_to_device(module)
            fully_shard(module, reshard_after_forward=self.config.reshard_after_forward, mp_policy=own, **options)
        self._take_to_device(policy)
        # The root is needed again as soon as backward starts: freeing it in between would only cost a second gather.
        fully_shard(policy, reshard_after_forward=False, mp_policy=outer, **options)
        self.watch = UnitWatch((unit.path, module) for unit, module in plan.modules(policy))

    def _take_to_device(self, module: torch.nn.Module) -> None:
        """Move what ``module`` still has on the host, as ``fully_shard`` would in a way that not all devices take."""
        device = self.context.device
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.device.type not in (device.type, "meta") and not isinstance(tensor, DTensor):
                replace_tensor(tensor, tensor.detach().to(device))

    def _policies(self) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
        """Dtypes of the units and of the root, whose outputs losses take in fp32."""
        own, precision = self.config.mixed_precision_policy, self.context.precision
        if own.param_dtype is not None:
            policy = MixedPrecisionPolicy(
                param_dtype=DTYPES[own.param_dtype],
                reduce_dtype=DTYPES[own.reduce_dtype or "fp32"],
                output_dtype=None if own.output_dtype is None else DTYPES[own.output_dtype],
                cast_forward_inputs=own.cast_forward_inputs,
            )
            return policy, policy
        block = unit_precision(self.config, precision)
        common: dict[str, Any] = {"reduce_dtype": precision.reduce}
        if precision.is_mixed:
            common["param_dtype"] = precision.compute
        inner = MixedPrecisionPolicy(**common, cast_forward_inputs=block.cast_forward_inputs)
        outer = MixedPrecisionPolicy(
            **common,
            output_dtype=torch.float32 if precision.is_mixed else None,
            cast_forward_inputs=block.cast_forward_inputs and block.cast_root_forward_inputs,
        )
        return inner, outer

    def plan(self, policy: torch.nn.Module) -> WrapPlan:
        """The units of ``policy``, which is not yet sharded."""
        precision = unit_precision(self.config, self.context.precision)
        return log_notices(resolve_wrap_plan(policy, self.config, strategy="fsdp2", precision=precision))

    @staticmethod
    def _warn_of_buffers(plan: WrapPlan) -> None:
        low = {unit.precision.buffer_dtype or "fp32" for unit in plan.units} - {"fp32"}
        if low:
            _log.warning("fsdp_config: buffer_dtype %s has no effect: fsdp2 leaves buffers alone", min(low))

    def _named_policy(self, plan: WrapPlan, unit: WrapUnit) -> MixedPrecisionPolicy:
        """Dtypes of a unit with a policy of its own; it returns what the unit around it computes in."""
        around = plan.parent(unit).precision.param_dtype
        own = unit.precision
        return MixedPrecisionPolicy(
            param_dtype=_dtype(own.param_dtype),
            reduce_dtype=_dtype(own.reduce_dtype),
            output_dtype=None if around == own.param_dtype else _dtype(around) or self.context.precision.weights,
            cast_forward_inputs=own.cast_forward_inputs,
        )

    def callable_module(self, training: bool) -> torch.nn.Module:
        """The policy: sharding hooks sit on the module itself."""
        return self._policy

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """Without ``last`` gradients stay whole on their rank; with it they are reduced and sharded."""
        module = self._policy
        assert isinstance(module, FSDPModule)
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        if not self.config.reshard_after_forward:
            module.set_reshard_after_backward(last)
        yield
        if last:
            self._ignored.average_gradients()

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """The ranks of this rank's copy."""
        return self.mesh["dp_shard"].get_group()

    def compute_context(self) -> AbstractContextManager[Any]:
        """Nothing: units cast by themselves."""
        return nullcontext()

    def rest(self) -> None:
        """Free every gathered parameter, so that what is read, written or moved is the shard."""
        for module in self._policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def recover(self, *, keep_gradients: bool = False) -> None:
        """Drop gathered parameters and, unless they are to be kept, gradients that were not reduced yet."""
        assert isinstance(self._policy, FSDPModule)
        self._policy.reset_iter_state()
        if keep_gradients:
            return
        for module in self._policy.modules():
            if isinstance(module, FSDPModule):
                _drop_accumulated(module)


def make_mesh(device: torch.device, topology: Topology) -> DeviceMesh:
    """A mesh with the copies outermost; of one dimension when there is one copy. Collective."""
    if topology.is_hybrid:
        shape = (topology.dp_replicate, topology.dp_shard)
        return init_device_mesh(device.type, shape, mesh_dim_names=MESH_NAMES)
    return init_device_mesh(device.type, (topology.dp_shard,), mesh_dim_names=MESH_NAMES[1:])


def log_notices(plan: WrapPlan) -> WrapPlan:
    """Log what planning did that nobody asked for, and return the plan."""
    for text in plan.notices:
        _log.info("wrap plan: %s", text)
    return plan


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else DTYPES[name]


def _drop_accumulated(module: FSDPModule) -> None:
    """Drop whole gradients of micro-batches before the one that failed.

    torch 2.13 says that reset_iter_state() discards them, but keeps them on the gathered parameters. Nothing public
    reaches those without a collective, which a rank that failed alone must not start.
    """
    for group in module._get_fsdp_state()._fsdp_param_groups:
        for parameter in group.fsdp_params:
            parameter.unsharded_accumulated_grad = None
            gathered = getattr(parameter, "_unsharded_param", None)
            if gathered is not None:
                gathered.grad = None
