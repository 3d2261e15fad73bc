"""A plan beside the run that follows it: predicted and measured times of each phase, step by step."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from plugrl.config.schema import RunConfig
from plugrl.runners.step import Step
from plugrl.runtime.flow import FlowRecord
from plugrl.runtime.flow.arrange import PHASE_STRIDE
from plugrl.runtime.planner import DriftMonitor, Plan, PlanArtefact, collapse, phase_costs

logger = logging.getLogger(__name__)


class PlanWatch:
    """Compares a run with its plan.

    The weights' way to the rollout counts with the phase of the actor, as in the profile. A phase that stays away from
    its prediction is warned of once.
    """

    def __init__(self, artefact: PlanArtefact) -> None:
        best = artefact.best
        assert best is not None
        self.predicted_us = [cost.time_us for cost in phase_costs(collapse(artefact.case).case, best)]
        self._actor = _phase_of(best, "actor")
        self._monitor = DriftMonitor(self.predicted_us)
        self._warned: set[int] = set()

    def observe(self, step: Step, record: FlowRecord) -> None:
        """Record ``perf/plan_*`` of a step, and warn when a phase has drifted."""
        measured = phase_seconds(record, len(self.predicted_us))
        measured[self._actor] += step.seconds.get("update_weights", 0.0)
        predicted = [time_us / 1e6 for time_us in self.predicted_us]
        for phase, (expected, found) in enumerate(zip(predicted, measured, strict=True)):
            name = f"perf/plan_phase_{phase}"
            step.record({f"{name}_predicted_s": expected, f"{name}_measured_s": found})
        step.record(
            {
                "perf/plan_predicted_s": sum(predicted),
                "perf/plan_measured_s": sum(measured),
                "perf/plan_error": sum(measured) / sum(predicted) - 1 if sum(predicted) else 0.0,
            }
        )
        drift = self._monitor.observe([seconds * 1e6 for seconds in measured])
        if drift is not None and drift.phase not in self._warned:
            self._warned.add(drift.phase)
            logger.warning("step %d: %s (plugrl plan CONFIG).", step.number, drift)


@dataclass(frozen=True)
class Planned:
    """A configuration that follows a plan, and what watches over it."""

    config: RunConfig
    watch: PlanWatch


def phase_seconds(record: FlowRecord, phases: int) -> list[float]:
    """Return how long each phase of a flow took, moving components included.

    A phase lasts until the next one begins to work on a device, so that what the driver does between the two is its.
    """
    begins = [0.0] * phases
    seen: set[int] = set()
    for span in record.spans:
        phase = span.item.stage.phase // PHASE_STRIDE
        if span.item.stage.devices and phase not in seen:
            seen.add(phase)
            begins[phase] = span.begin
    if not record.spans:
        return begins
    begins[0] = min(span.begin for span in record.spans)
    ends = [*begins[1:], max(span.end for span in record.spans)]
    return [end - begin for begin, end in zip(begins, ends, strict=True)]


def _phase_of(plan: Plan, component: str) -> int:
    return next(p for p, phase in enumerate(plan.phases) for stage in phase.stages if component in stage.components)
