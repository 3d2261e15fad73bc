"""The worker around a training engine: actor, critic and reference are this one class with different settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from plugrl.config.schema import ActorConfig, CriticConfig, ModelConfig, OptimConfig, RefConfig
from plugrl.engines.base import BaseEngine, Batch, BatchOptions, LossFunction
from plugrl.engines.registry import EngineRegistry
from plugrl.engines.state import Block, EngineState, StateParts, StateSpec
from plugrl.metric import Metric
from plugrl.models.registry import model_category
from plugrl.runtime.elastic.moving import StateWorker
from plugrl.runtime.flow.residency import State
from plugrl.runtime.seeding import seed_rank
from plugrl.runtime.sync import SyncReport, WeightRoute
from plugrl.workers.digests import weight_digests
from plugrl.workers.dispatch import DataPlace
from plugrl.workers.publishing import WeightDescription, WeightPublisher
from plugrl.workers.residence import DeviceMemory, as_mib, device_memory, training_bytes, weight_bytes

EngineType = Literal["language_model", "value_model", "embodied_model"]
"""A category of model types, as engines are registered for it."""


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """What a training worker builds.

    engine_type: see :func:`engine_type_of`. section: the configuration of the component, which holds the
    engine's own section. optim: None makes a forward-only engine. total_steps: length of the schedule in trainer steps.
    allocator_settings: see ``cluster.allocator_settings``. shares_device: whether another component works on the same
    device, so that cached memory is given back after use.
    """

    engine_type: EngineType
    section: ActorConfig | CriticConfig | RefConfig
    model: ModelConfig
    optim: OptimConfig | None
    total_steps: int
    seed: int
    allocator_settings: str | None = None
    shares_device: bool = False


class TrainingWorker(StateWorker):
    """One rank of a component that holds an engine. Methods marked collective must be called on all ranks."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.engine: BaseEngine
        self._publisher: WeightPublisher

    def setup(self) -> None:
        """Build the engine. Collective."""
        if self.spec.allocator_settings is not None:
            self.platform.set_allocator_settings(self.spec.allocator_settings)
        torch.manual_seed(self.spec.seed)
        self.platform.manual_seed_all(self.spec.seed)
        self.engine = build_engine(self.spec)
        self.engine.initialize()
        # What was built so far is alike on all ranks; dropout and noise are not to be.
        self._publisher = WeightPublisher(self.engine, self.context.rank)
        seed_rank(self.platform, self.spec.seed, self.engine.get_data_parallel_rank())

    def data_place(self) -> DataPlace:
        """Return which rows this rank is to be given."""
        engine = self.engine
        return DataPlace(
            engine.get_data_parallel_rank(), engine.get_data_parallel_size(), engine.is_mp_src_rank_with_outputs()
        )

    def infer(self, batch: Batch, options: BatchOptions, *, adapter: bool = True) -> dict[str, torch.Tensor]:
        """Return the policy's outputs for this rank's rows, on the CPU; without its adapter if asked. Collective."""
        with self.engine.eval_mode(), nullcontext() if adapter else self.engine.disable_adapter():
            return self.engine.infer_batch(batch, options=options).outputs

    def train(
        self, mini_batches: Sequence[Batch], loss_function: LossFunction, options: BatchOptions, *, last: bool = True
    ) -> list[dict[str, Metric]]:
        """Do one optimizer step for each mini-batch and advance the schedule once; returns metrics of each. Collective.

        ``mini_batches`` holds this rank's rows of each mini-batch. Without any the schedule alone advances: it counts
        trainer steps, also those in which there was nothing to learn. More of the same trainer step follow unless these
        are the ``last``, with which the schedule advances.
        """
        if not mini_batches:
            return [{"lr": Metric(self.engine.lr_scheduler_step())}] if last else []
        metrics = []
        with self.engine.train_mode():
            for position, batch in enumerate(mini_batches):
                ends = last and position == len(mini_batches) - 1
                result = self.engine.train_batch(batch, loss_function, options, update_lr_scheduler=ends)
                metrics.append(result.metrics)
        # Work may still be queued on the device; without waiting, the next phase would be charged for it.
        self.platform.synchronize()
        if self.spec.shares_device:
            self.platform.empty_cache()
        return metrics

    def reside(self, state: State) -> None:
        """Bring everything to the device (``all``), the model alone (``weights``) or nothing (``away``). Collective."""
        device = self.platform.device_name
        self.engine.to(device if state != "away" else "cpu", model=True, optimizer=False, grad=True)
        self.engine.to(device if state == "all" else "cpu", model=False, optimizer=True, grad=False)
        self.platform.empty_cache()

    def memory_mib(self) -> tuple[int, int]:
        """Return the MiB on this rank's device of the weights, and of all that training holds."""
        module = self.engine.module
        weights = weight_bytes([*module.parameters(), *module.buffers()])
        extra = training_bytes(module.parameters()) if self.spec.optim is not None else 0
        return as_mib(weights), as_mib(weights + extra)

    def device_memory(self) -> DeviceMemory:
        """Return what the device says of its memory, see :func:`plugrl.workers.residence.device_memory`."""
        return device_memory(self.platform)

    def profile(self, on: bool) -> None:
        """Start or stop the platform's profiler in this process."""
        if on:
            self.platform.profiler_start()
        else:
            self.platform.profiler_stop()

    def describe_weights(self) -> WeightDescription | None:
        """Return what :meth:`send_weights` sends, on rank 0. Collective."""
        return self._publisher.describe()

    def send_weights(self, route: WeightRoute, version: int, *, merged: bool = True) -> SyncReport | None:
        """Bring the weights to the rollout workers; rank 0 returns what it sent. Collective.

        ``merged=False`` leaves the adapter to the receivers, see :class:`plugrl.workers.publishing.WeightPublisher`.
        """
        return self._publisher.send(route, version, merged=merged)

    def weight_digests(self) -> dict[str, str]:
        """Return digests of what :meth:`send_weights` sends, on rank 0; the other ranks return nothing. Collective."""
        stream, _ = self.engine.get_per_tensor_param()
        digests = weight_digests(stream)
        return digests if self.context.rank == 0 else {}

    def save(self, directory: str, step: int, progress: Mapping[str, Any] | None = None) -> None:
        """Write weights and training state into ``directory``. Collective."""
        self.engine.save_checkpoint(directory, global_step=step, progress=progress)

    def load(self, directory: str, progress: Mapping[str, Any] | None = None) -> None:
        """Read what :meth:`save` wrote, under any layout. Collective."""
        self.engine.load_checkpoint(directory, progress=progress)
        self._publisher.weights_were_loaded()

    def settle(self) -> None:
        """Wait for the device, and drop what a hand-over left."""
        self.platform.synchronize()
        super().settle()

    def export_state(self) -> EngineState:
        """The engine's state. Collective."""
        return self.engine.export_state()

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """What the engine holds of such a state."""
        return self.engine.wanted_state(specs)

    def import_state(self, parts: StateParts, values: Mapping[str, Any]) -> None:
        """Let the engine go on from a state. Collective."""
        self.engine.import_state(parts, values, self.spec.seed)
        self._publisher.weights_were_loaded()

    def close(self) -> None:
        """Free the weight channel, then the process group."""
        self._publisher.close()
        super().close()


def engine_type_of(component: str, model: ModelConfig) -> EngineType:
    """Return what kind of engine trains a component: the critic's for values, else that of the model's category."""
    if component == "critic":
        return "value_model"
    return "embodied_model" if model_category(model.model_type) == "embodied" else "language_model"


def build_engine(spec: EngineSpec) -> BaseEngine:
    """Return the engine that the configuration names, not yet initialised."""
    optim = spec.optim
    if optim is not None and optim.total_training_steps < 0:
        optim = optim.model_copy(update={"total_training_steps": spec.total_steps})
    return EngineRegistry.new(
        spec.engine_type,
        spec.section.strategy,
        spec.model,
        engine_section(spec.section, spec.engine_type),
        optim,
        getattr(spec.section, "checkpoint", None),
    )


def engine_section(section: Any, engine_type: str) -> Any:
    """Return the section that the engine's plugin added to ``section``, None when it added none."""
    declared = EngineRegistry.sections(engine_type, section.strategy)
    return next((getattr(section, item.key) for item in declared if hasattr(section, item.key)), None)
