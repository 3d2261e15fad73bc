"""The layout ``ddp``: a whole copy on every rank, gradients averaged; the plain policy when there is one rank."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from plugrl_engine_fsdp.distributed import world_size
from plugrl_engine_fsdp.engine import DataParallelEngine, autocast


class DdpEngine(DataParallelEngine):
    """torch's DistributedDataParallel around the policy. Forward-only work calls the policy itself."""

    _wrapper: torch.nn.Module | None = None

    def spread(self, policy: torch.nn.Module) -> None:
        """Wrap ``policy`` when there is more than one rank and something to train."""
        if world_size() > 1 and self.trainable:
            self._wrapper = DistributedDataParallel(
                policy,
                # Rank 0's values were copied already, and buffers of a policy do not change in training.
                init_sync=False,
                forward_sync_buffers=False,
                find_unused_parameters=self.config.ddp.find_unused_parameters,
                gradient_as_bucket_view=self.config.ddp.gradient_as_bucket_view,
            )

    def callable_module(self, training: bool) -> torch.nn.Module:
        """The wrapper in training, since it reduces gradients; the policy otherwise."""
        return self._wrapper if training and self._wrapper is not None else self.module

    def gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are reduced in the backward of the last micro-batch alone."""
        if last or not isinstance(self._wrapper, DistributedDataParallel):
            return nullcontext()
        return self._wrapper.no_sync()

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """None: every rank holds whole gradients."""
        return None

    def compute_context(self) -> AbstractContextManager[Any]:
        """Autocast when compute is not in the dtype of the weights."""
        return autocast(self.device, self.precision.compute, self.precision.is_mixed)

    def recover(self) -> None:
        """Rebuild the wrapper: after a step that was cut short it still waits for the missing gradients."""
        self._rewrap()

    def moved(self) -> None:
        """Rebuild the wrapper: its hooks hang on the gradient accumulators of the old device."""
        parameter = next(self.module.parameters(), None)
        if parameter is not None and parameter.device.type == self.device.type:
            self._rewrap()

    def _rewrap(self) -> None:
        if self._wrapper is not None:
            self._wrapper = None
            self.spread(self.module)
