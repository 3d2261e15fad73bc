"""The layout of one process: the plain policy."""

from __future__ import annotations

import torch

from plugrl_engine_fsdp.layouts.base import Layout


class SingleLayout(Layout):
    """A whole copy and nobody to share it with; also of replicated policies that are not trained."""

    name = "single"
    _policy: torch.nn.Module

    def spread(self, policy: torch.nn.Module) -> None:
        """Keep ``policy`` as it is."""
        self._policy = policy

    def callable_module(self, training: bool) -> torch.nn.Module:
        """The policy."""
        return self._policy
