"""The layout ``fsdp2``: torch's ``fully_shard`` over all ranks; the plain policy when there is one rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from plugrl.errors import ConfigError
from plugrl_engine_fsdp.distributed import world_size
from plugrl_engine_fsdp.engine import DataParallelEngine, autocast
from plugrl_engine_fsdp.units import check_dtypes, check_ties, units_by_class, units_by_size


class Fsdp2Engine(DataParallelEngine):
    """Parameters, gradients and optimizer state sharded over all ranks, gathered unit by unit in a forward."""

    _group: dist.ProcessGroup | None = None

    def spread(self, policy: torch.nn.Module) -> None:
        """Shard ``policy`` in place, its units first, then the rest as the root unit."""
        size = world_size()
        if self.config.fsdp_size not in (-1, size):
            raise ConfigError(
                f"fsdp_config.fsdp_size: {self.config.fsdp_size} ranks per copy are not supported with {size} ranks; "
                "give -1 to shard over all of them"
            )
        if size == 1:
            return
        units = self._units(policy)
        check_ties(policy, units)
        check_dtypes(policy, units)
        mesh = init_device_mesh(self.device.type, (size,), mesh_dim_names=("fsdp",))
        self._group = mesh.get_group()
        precision = self.precision
        options: dict[str, Any] = {"mesh": mesh}
        inner = outer = MixedPrecisionPolicy(reduce_dtype=precision.reduce)
        if precision.is_mixed:
            inner = MixedPrecisionPolicy(param_dtype=precision.compute, reduce_dtype=precision.reduce)
            outer = MixedPrecisionPolicy(
                param_dtype=precision.compute, reduce_dtype=precision.reduce, output_dtype=torch.float32
            )
        for _, unit in units:
            fully_shard(unit, reshard_after_forward=self.config.reshard_after_forward, mp_policy=inner, **options)
        # The root is needed again as soon as backward starts: freeing it in between would only cost a second gather.
        fully_shard(policy, reshard_after_forward=False, mp_policy=outer, **options)

    def _units(self, policy: Any) -> list[tuple[str, torch.nn.Module]]:
        wrap = self.config.wrap_policy
        if wrap.transformer_layer_cls_to_wrap is not None and wrap.min_num_params > 0:
            raise ConfigError(
                "fsdp_config.wrap_policy: transformer_layer_cls_to_wrap and min_num_params exclude each other"
            )
        if wrap.min_num_params > 0:
            return units_by_size(policy, wrap.min_num_params)
        names = wrap.transformer_layer_cls_to_wrap
        if names is None:
            names = list(policy.wrap_units())
        if not names:
            raise ConfigError(
                f"fsdp_config.wrap_policy: {type(policy).__name__} declares no units to shard; name them in "
                "transformer_layer_cls_to_wrap or set min_num_params"
            )
        return units_by_class(policy, names)

    def callable_module(self, training: bool) -> torch.nn.Module:
        """The policy: sharding hooks sit on the module itself."""
        return self.module

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """Without ``last`` gradients stay whole on their rank; with it they are reduced and sharded."""
        module = self.module
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(last)
            module.set_is_last_backward(last)
            if not self.config.reshard_after_forward:
                module.set_reshard_after_backward(last)
        yield

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """All ranks; None when there is one."""
        return self._group

    def compute_context(self) -> AbstractContextManager[Any]:
        """Sharded units cast by themselves; the plain policy is run under autocast."""
        if isinstance(self.module, FSDPModule):
            return nullcontext()
        return autocast(self.device, self.precision.compute, self.precision.is_mixed)

    def rest(self) -> None:
        """Free every gathered parameter, so that what is read, written or moved is the shard."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def recover(self) -> None:
        """Drop gathered parameters and gradients that were not reduced when an exception cut a step short."""
        if not isinstance(self.module, FSDPModule):
            return
        self.module.reset_iter_state()
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                _drop_accumulated(module)


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
