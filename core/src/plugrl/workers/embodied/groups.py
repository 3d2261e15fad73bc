"""The driver's handles to the components of a run in environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.runtime import Handle
from plugrl.runtime.flow.residency import State
from plugrl.runtime.group import WorkerGroup
from plugrl.runtime.handle import wait_together
from plugrl.workers.embodied.acting import ActingReport
from plugrl.workers.embodied.env_worker import EnvReport
from plugrl.workers.embodied.filming import FilmOrder
from plugrl.workers.embodied.objective import EmbodiedObjective
from plugrl.workers.embodied.packed import PackedTensors
from plugrl.workers.groups import RolloutGroup, TrainingGroup


class EnvGroup:
    """A group of :class:`plugrl.workers.embodied.env_worker.EnvWorker` that share out the scenes."""

    def __init__(self, group: WorkerGroup, timeout: float) -> None:
        self.group = group
        self.timeout = timeout

    def prepare(self, step: int) -> Handle[list[None]]:
        """Let the episodes of a step begin; returns at once."""
        return self.group.execute("prepare", step)

    def reside(self, state: State) -> None:
        """Bring the component to its devices, see :class:`plugrl.runtime.flow.residency.Resident`."""
        self.group.execute("reside", state).wait(self.timeout)

    def memory_mib(self) -> tuple[int, int]:
        """Return 0 and 0: what simulators take is declared, if at all."""
        return 0, 0

    def close(self) -> None:
        """End the workers."""
        self.group.close()


class ActingGroup(RolloutGroup):
    """A group of :class:`plugrl.workers.embodied.acting.ActingWorker`."""

    def interact(self, env: EnvGroup, step: int) -> tuple[list[ActingReport], list[EnvReport]]:
        """Let environments and policy go through the passes of a training step together; an error of either ends it."""
        calls = [self.group.execute("interact", step), env.group.execute("interact", step)]
        acted, stepped = wait_together(calls, self.timeout)
        return acted, stepped

    def evaluate(self, env: EnvGroup, order: FilmOrder | None = None) -> list[EnvReport]:
        """Let them go through the scenes of an evaluation, of which some are filmed."""
        reports: list[EnvReport] = wait_together(
            [self.group.execute("evaluate"), env.group.execute("evaluate", order)], self.timeout
        )[1]
        return reports


class LearningGroup(TrainingGroup):
    """A group of :class:`plugrl.workers.embodied.learning.LearningWorker`."""

    def learn(
        self,
        rows: PackedTensors,
        mini_batches: Sequence[NDArray[np.int64]],
        objective: EmbodiedObjective,
        micro_batch_size: int | None,
        forward_kwargs: Mapping[str, Any],
    ) -> dict[str, float]:
        """Do one optimizer step for each mini-batch of rows; returns the metrics, mean over the steps."""
        found = self.group.execute("learn", rows, mini_batches, objective, micro_batch_size, forward_kwargs)
        return self.metrics([found.wait(self.timeout)])
