"""Modules that are left whole on every rank while the rest of the policy is sharded."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from torch import nn

from plugrl.errors import ConfigError, one_of


class IgnoredParameters:
    """The parameters below the modules whose whole path ``pattern`` matches; none without a pattern.

    fully_shard leaves them alone, their gradients included: those of trainable ones are averaged here, so that the
    copies do not drift apart.

    Raises:
        ConfigError: the pattern matches no module.
    """

    def __init__(self, policy: nn.Module, pattern: str | None) -> None:
        modules = dict(policy.named_modules()) if pattern is not None else {}
        self.paths = tuple(path for path in modules if path and re.fullmatch(pattern or "", path))
        if pattern is not None and not self.paths:
            raise ConfigError(
                f"fsdp_config.ignored_modules: {pattern!r} matches no module; the whole path must match, so begin with "
                f".* where it stands deeper. There are: {one_of(path for path in modules if path)}"
            )
        self.parameters = {parameter for path in self.paths for parameter in modules[path].parameters()}
        self._trainable = [parameter for parameter in policy.parameters() if parameter in self.parameters]
        self._trainable = [parameter for parameter in self._trainable if parameter.requires_grad]

    def covers(self, path: str) -> bool:
        """Whether ``path`` is an ignored module or lies in one."""
        return any(path == ignored or path.startswith(ignored + ".") for ignored in self.paths)

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
