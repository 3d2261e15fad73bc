"""Modules that are left whole on every rank while the rest of the policy is sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map_only

from plugrl_engine_fsdp.precision import DTYPES
from plugrl_engine_fsdp.wrapping.plan import WrapPlan


class IgnoredParameters:
    """The parameters below the modules at ``paths``.

    Sharding leaves them alone, their gradients included: those of trainable ones are averaged here, so that the copies
    do not drift apart.
    """

    def __init__(self, policy: nn.Module, paths: Iterable[str]) -> None:
        paths = tuple(paths)
        self._policy = policy
        self.modules = [policy.get_submodule(path) for path in paths]
        self._inside = {id(inner) for module in self.modules for inner in module.modules() if inner is not module}
        self.parameters = {parameter for module in self.modules for parameter in module.parameters()}
        self._trainable = [parameter for parameter in policy.parameters() if parameter in self.parameters]
        self._trainable = [parameter for parameter in self._trainable if parameter.requires_grad]

    def compute_as(self, plan: WrapPlan, device: torch.device) -> None:
        """Let the modules compute in the low dtype of the unit around each, as that unit's other modules do.

        What is sharded is cast when it is gathered, and these never are: autocast takes their weights to the dtype, and
        what they return is brought to it.
        """
        for path, module in self._computing():
            dtype = DTYPES[plan.around(path).precision.param_dtype or "fp32"]
            if dtype != torch.float32 and any(parameter.dtype != dtype for parameter in module.parameters()):
                module.forward = _cast(module.forward, dtype, device)

    def _computing(self) -> Iterator[tuple[str, nn.Module]]:
        """The outermost of the modules, and those elsewhere that a tie gave one of their parameters."""
        for path, module in self._policy.named_modules():
            inside = id(module) in self._inside
            if not inside and any(parameter in self.parameters for parameter in module.parameters(recurse=False)):
                yield path, module
            elif not inside and any(module is ignored for ignored in self.modules):
                yield path, module

    def average_gradients(self) -> None:
        """Average the gradients over all ranks. A gradient that no rank has stays None. Collective."""
        if not self._trainable:
            return
        device = self._trainable[0].device
        present = torch.tensor([parameter.grad is not None for parameter in self._trainable], dtype=torch.int32)
        present = present.to(device)
        dist.all_reduce(present, op=dist.ReduceOp.MAX)
        shared = [parameter for parameter, some in zip(self._trainable, present.tolist(), strict=True) if some]
        if not shared:
            return
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.float().flatten() for parameter in shared if parameter.grad is not None])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for parameter, part in zip(shared, flat.split([parameter.numel() for parameter in shared]), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(part.view_as(parameter.grad))


def _cast(forward: Callable[..., Any], dtype: torch.dtype, device: torch.device) -> Callable[..., Any]:
    """Let ``forward`` compute in ``dtype`` and return it."""

    def low(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    @wraps(forward)
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, dtype=dtype):
            outputs = forward(*args, **kwargs)
        return tree_map_only(torch.Tensor, low, outputs)

    return cast
