"""The layout ``ddp``: a whole copy on every rank, gradients averaged."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from plugrl_engine_fsdp.layouts.base import Layout


class DdpLayout(Layout):
    """torch's DistributedDataParallel around the policy. Forward-only work calls the policy itself."""

    name = "ddp"
    _policy: torch.nn.Module
    _wrapper: DistributedDataParallel | None = None
    """None while the policy is off the device."""

    def spread(self, policy: torch.nn.Module) -> None:
        """Wrap ``policy``."""
        self._policy = policy
        options = self.config.ddp
        self._wrapper = DistributedDataParallel(
            policy,
            # Rank 0's values were copied already, and buffers of a policy do not change in training.
            init_sync=False,
            forward_sync_buffers=False,
            find_unused_parameters=options.find_unused_parameters,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            static_graph=options.static_graph,
        )

    def callable_module(self, training: bool) -> torch.nn.Module:
        """The wrapper in training, since it reduces gradients; the policy otherwise."""
        if not training:
            return self._policy
        assert self._wrapper is not None
        return self._wrapper

    def gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are reduced in the backward of the last micro-batch alone."""
        assert self._wrapper is not None
        return nullcontext() if last else self._wrapper.no_sync()

    def recover(self, *, keep_gradients: bool = False) -> None:
        """Rebuild the wrapper: after a step that was cut short it still waits for the missing gradients."""
        if not keep_gradients:  # validation calls the policy itself
            self.spread(self._policy)

    def leave(self) -> None:
        """Drop the wrapper, which holds the gradient accumulators: a device from outside torch cannot move them."""
        self._wrapper = None

    def moved(self) -> None:
        """Rebuild the wrapper: its hooks hang on the gradient accumulators of the old device."""
        parameter = next(self._policy.parameters(), None)
        if parameter is not None and parameter.device.type == self.context.device.type:
            self.spread(self._policy)
