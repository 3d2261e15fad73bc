"""An extension module with an engine that is wrong: it sends the rollout the weights of the step before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from plugrl.engines import EngineRegistry
from plugrl_engine_fsdp.backends import Fsdp2Engine


@EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu", vendor="cpu")
class StaleEngine(Fsdp2Engine):
    """One synchronisation behind."""

    _waiting: list[tuple[str, torch.Tensor]] | None = None

    def get_per_tensor_param(self, merged: bool = True) -> tuple[Iterator[tuple[str, torch.Tensor]], Any]:
        """Return what should have been sent the last time."""
        stream, adapter = super().get_per_tensor_param(merged)
        fresh = [(name, tensor.clone()) for name, tensor in stream]
        stale, self._waiting = self._waiting or fresh, fresh
        return iter(stale), adapter
