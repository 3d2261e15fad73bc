"""The worker around a rollout backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from plugrl.config.schema import ModelConfig, RolloutConfig
from plugrl.engines.state import Block, EngineState, StateParts, StateSpec, whole_pieces
from plugrl.errors import ConfigError, UnsupportedCapability
from plugrl.rollouts.base import RolloutBackend, RolloutPlace, SamplingParams
from plugrl.rollouts.following import FollowingBackend
from plugrl.rollouts.registry import get_rollout
from plugrl.runtime.elastic.moving import StateWorker
from plugrl.runtime.flow.residency import State
from plugrl.runtime.sync import Received, TensorSpec, WeightReceiver, WeightRoute, specs_of
from plugrl.workers.digests import weight_digests
from plugrl.workers.residence import DeviceMemory, as_mib, device_memory, weight_bytes
from plugrl.workers.transport import PackedCompletions


class RolloutWorker(StateWorker):
    """One independent generator; the group's workers share the prompts and need no process group."""

    process_group: ClassVar[bool] = False

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, *, shares_device: bool = False) -> None:
        self.model = model
        self.rollout = rollout
        self.shares_device = shares_device
        self.backend: RolloutBackend
        self._receiver: WeightReceiver | None = None

    def setup(self) -> None:
        """Build the backend on this worker's device, or the engine of several ranks on the first one's."""
        backend = get_rollout(self.rollout.name)
        span = backend.ranks_per_engine(self.rollout)
        place = self._place(span)
        leads = self.rank % span == 0
        self.backend = (backend if leads else FollowingBackend)(self.model, self.rollout)
        self.backend.place = place
        self.backend.initialize()

    def _place(self, span: int) -> RolloutPlace:
        """Return which engine this is, and the devices of its ranks, which each of them tells the others."""
        if self.world_size % span:
            raise ConfigError(
                f"cluster.component_placement: an engine of rollout.name={self.rollout.name} takes {span} devices, so "
                f"{self.world_size} cannot be shared out. Give the rollout a multiple of {span}."
            )
        place = RolloutPlace(engine=self.rank // span, engines=self.world_size // span)
        device = self.context.device
        if device is None or device.physical_id is None:
            return place
        own = [self.context.node_id, device.physical_id]
        first = self.rank - self.rank % span
        told = {self.rank: own}
        if span > 1:
            prefix = f"rollout-devices/{self.group_name}/{self.context.generation}"
            self.directory.publish(f"{prefix}/{self.rank}", own)
            told = {
                rank: self.directory.lookup(f"{prefix}/{rank}", what=f"the device of rank {rank}")
                for rank in range(first, first + span)
            }
        if len({node for node, _ in told.values()}) > 1:
            raise ConfigError(
                f"cluster.component_placement: ranks {first} to {first + span - 1} of the rollout share an engine, but "
                "lie on different nodes. Place them on one."
            )
        return replace(place, devices=tuple(name for _, name in told.values()), variable=device.variable)

    def engine_version(self) -> str:
        """Return name and version of the library that generates, empty where it does not matter."""
        return self.backend.engine_version

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> PackedCompletions:
        """Sample completions, see :meth:`plugrl.rollouts.base.RolloutBackend.generate`."""
        completions = self.backend.generate(prompts, params, seeds) if prompts else []
        if self.shares_device:
            self.platform.empty_cache()
        return PackedCompletions.pack(completions)

    def describe_weights(self) -> tuple[tuple[TensorSpec, ...] | None, bool]:
        """Return the weights that the backend has, None if it cannot show them, and whether it merges adapters."""
        try:
            specs = specs_of(self.backend.named_weights())
        except UnsupportedCapability:
            return None, self.backend.merges_adapters
        return specs, self.backend.merges_adapters

    def receive_weights(self, route: WeightRoute, version: int, adapter: Mapping[str, Any] | None = None) -> None:
        """Replace the weights by those that the actor sends; with ``adapter`` they come unmerged."""
        if self._receiver is not None and self._receiver.route.name != route.name:
            self._receiver.close()
            self._receiver = None
        if self._receiver is None:
            self._receiver = WeightReceiver(route, self.context.rank)
        self._receiver.apply(version, partial(self._load, adapter))

    def weight_version(self) -> int:
        """Return the version of the weights in use."""
        return self.backend.weight_version

    def _load(self, adapter: Mapping[str, Any] | None, received: Received, version: int) -> None:
        if adapter is not None:
            self.backend.load_adapter(dict(received.tensors), adapter, version)
        elif received.lasting:
            self.backend.adopt_weights(dict(received.tensors), version)
        else:
            self.backend.load_weights(received.tensors, version)

    def export_state(self) -> EngineState:
        """The weights in use; all ranks have the same, so each gives a part of them."""
        pieces = whole_pieces(self.backend.named_weights())
        return EngineState(
            pieces=[piece for index, piece in enumerate(pieces) if index % self.world_size == self.rank],
            values={"weight_version": self.backend.weight_version},
        )

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """All of it."""
        return [Block.of_whole(key, spec) for key, spec in specs.items()]

    def import_state(self, parts: StateParts, values: Mapping[str, Any]) -> None:
        """Load the weights as the version that they are."""
        tensors = ((key, parts.read(Block.of_whole(key, spec))) for key, spec in parts.specs.items())
        self.backend.load_weights(tensors, values["weight_version"])

    def reside(self, state: State) -> None:
        """Wake the backend, or let it sleep where it is to be ``away``."""
        if state == "away":
            self.backend.sleep()
        else:
            self.backend.wake()

    def memory_mib(self) -> tuple[int, int]:
        """Return the MiB of the weights, twice; 0 where the backend cannot show them."""
        try:
            weights = as_mib(weight_bytes(tensor for _, tensor in self.backend.named_weights()))
        except UnsupportedCapability:
            weights = 0
        return weights, weights

    def device_memory(self) -> DeviceMemory:
        """Return what the device says of its memory, see :func:`plugrl.workers.residence.device_memory`."""
        return device_memory(self.platform)

    def weight_digests(self) -> dict[str, str]:
        """Return digests of the weights in use by published name, to compare with those of the actor."""
        return weight_digests(self.backend.named_weights())

    def close(self) -> None:
        """Free the weight channel and the backend."""
        if self._receiver is not None:
            self._receiver.close()
        self.backend.close()
        super().close()
