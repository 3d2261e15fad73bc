"""The worker around a rollout backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from plugrl.config.schema import ModelConfig, RolloutConfig
from plugrl.rollouts.base import RolloutBackend, SamplingParams
from plugrl.rollouts.registry import get_rollout
from plugrl.runtime.weights import WeightReceiver, WeightRoute
from plugrl.runtime.worker import Worker
from plugrl.workers.digests import weight_digests
from plugrl.workers.transport import PackedCompletions


class RolloutWorker(Worker):
    """One independent generator; the group's workers share the prompts and need no process group."""

    process_group: ClassVar[bool] = False

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, shares_device: bool = False) -> None:
        self.model = model
        self.rollout = rollout
        self.shares_device = shares_device
        self.backend: RolloutBackend
        self._receiver: WeightReceiver | None = None

    def setup(self) -> None:
        """Build the backend on this worker's device."""
        self.backend = get_rollout(self.rollout.name)(self.model, self.rollout)
        self.backend.initialize()

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> PackedCompletions:
        """Sample completions, see :meth:`plugrl.rollouts.base.RolloutBackend.generate`."""
        completions = self.backend.generate(prompts, params, seeds) if prompts else []
        if self.shares_device:
            self.platform.empty_cache()
        return PackedCompletions.pack(completions)

    def receive_weights(self, route: WeightRoute, version: int) -> None:
        """Replace the weights by those that the actor streams."""
        if self._receiver is None:
            self._receiver = WeightReceiver(route, self.context.rank)
        self.backend.load_weights(self._receiver.receive(version, copy=False), version)

    def weight_digests(self) -> dict[str, str]:
        """Return digests of the weights in use by published name, to compare with those of the actor."""
        return weight_digests(self.backend.named_weights())

    def close(self) -> None:
        """Free the weight channel and the backend."""
        if self._receiver is not None:
            self._receiver.close()
        self.backend.close()
        super().close()
