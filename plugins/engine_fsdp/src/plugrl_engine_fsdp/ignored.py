"""Modules that are left whole on every rank while the rest of the policy is sharded."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class IgnoredParameters:
    """The parameters below the modules at ``paths``.

    Sharding leaves them alone, their gradients included: those of trainable ones are averaged here, so that the copies
    do not drift apart.
    """

    def __init__(self, policy: nn.Module, paths: Iterable[str]) -> None:
        self.modules = [policy.get_submodule(path) for path in paths]
        self.parameters = {parameter for module in self.modules for parameter in module.parameters()}
        self._trainable = [parameter for parameter in policy.parameters() if parameter in self.parameters]
        self._trainable = [parameter for parameter in self._trainable if parameter.requires_grad]

    def average_gradients(self) -> None:
        """Average the gradients over all ranks. A gradient that no rank has stays None. Collective."""
        if not self._trainable:
            return
        device = self._trainable[0].device
        present = torch.tensor([parameter.grad is not None for parameter in self._trainable], dtype=torch.int32)
        present = present.to(device)
        dist.all_reduce(present, op=dist.ReduceOp.MAX)
        shared = [parameter for parameter, some in zip(self._trainable, present.tolist(), strict=True) if some]
        for parameter in shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.float().flatten() for parameter in shared if parameter.grad is not None])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for parameter, part in zip(shared, flat.split([parameter.numel() for parameter in shared]), strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(part.view_as(parameter.grad))
