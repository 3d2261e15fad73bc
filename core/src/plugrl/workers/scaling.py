"""How the components of a run are scaled: trainers with their state, rollouts with the weights of one version."""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.runtime.elastic import Fault, Launch, ScaleReport, Scaling, StateScaling, no_fault
from plugrl.runtime.group import WorkerGroup
from plugrl.workers.groups import RolloutGroup, TrainingGroup


class TrainerScaling(StateScaling):
    """The steps for a training group: weights, optimizer, averages, schedule, counters and random states move along."""

    def __init__(self, trainer: TrainingGroup, launch: Launch) -> None:
        self._trainer = trainer
        super().__init__(trainer.group, launch, self._put)

    def _put(self, new: WorkerGroup) -> None:
        self._trainer.group = new


class RolloutScaling(StateScaling):
    """The steps for a rollout: the new workers get the weights that the old ones have, as the same version.

    The actor has no part in it; at the next update it finds the new workers by themselves.
    """

    def __init__(self, rollout: RolloutGroup, launch: Launch) -> None:
        self._rollout = rollout
        super().__init__(rollout.group, launch, self._put)

    def _put(self, new: WorkerGroup) -> None:
        self._rollout.group = new


def trainer_scaling(
    trainer: TrainingGroup, devices: Sequence[int], *, timeout: float, fault: Fault = no_fault
) -> Scaling:
    """Return the scaling of a trainer to a rank for each of ``devices``, not yet begun."""
    plan = TrainerScaling(trainer, lambda old: old.successor(devices))
    return Scaling(plan, timeout=timeout, fault=fault)


def scale_trainer(
    trainer: TrainingGroup, devices: Sequence[int], *, timeout: float, fault: Fault = no_fault
) -> ScaleReport:
    """Do a whole scaling between two steps. Raises ScaleError, see :class:`plugrl.runtime.elastic.Scaling`."""
    scaling = trainer_scaling(trainer, devices, timeout=timeout, fault=fault)
    scaling.begin()
    return scaling.finish()
