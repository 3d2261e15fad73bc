"""A plan beside the run that follows it: predicted and measured times of each phase, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean

from plugrl.runners.step import Step
from plugrl.runtime.flow import FlowRecord
from plugrl.runtime.flow.arrange import PHASE_STRIDE
from plugrl.runtime.planner import Case, Drift, DriftMonitor, Plan, phase_costs, spans
from plugrl.runtime.planner.drift import PATIENCE


class PlanWatch:
    """Compares the steps of a run with its plan.

    The weights' way to the rollout counts with the actor and its phase, as in the profile.
    """

    def __init__(self, case: Case, plan: Plan) -> None:
        self.case, self.plan = case, plan
        self.predicted_us = [cost.time_us for cost in phase_costs(case, plan)]
        self._work_us = work_us(case, plan)
        self._bubble = predicted_bubble(case, plan)
        self._monitor = DriftMonitor(self.predicted_us)
        self._taken: deque[dict[str, float]] = deque(maxlen=PATIENCE)

    def observe(self, step: Step, record: FlowRecord, owners: Mapping[str, str]) -> Drift | None:
        """Record ``perf/plan_*`` of a step; returns the phase that drifted. ``owners`` is the component of a stage."""
        sync = step.seconds.get("update_weights", 0.0)
        measured = phase_seconds(record, len(self.predicted_us))
        measured[phase_of(self.plan, "actor")] += sync
        predicted = [time_us / 1e6 for time_us in self.predicted_us]
        for phase, (expected, found) in enumerate(zip(predicted, measured, strict=True)):
            name = f"perf/plan_phase_{phase}"
            step.record({f"{name}_predicted_s": expected, f"{name}_measured_s": found})
        step.record(
            {
                "perf/plan_predicted_s": sum(predicted),
                "perf/plan_measured_s": sum(measured),
                "perf/plan_error": sum(measured) / sum(predicted) - 1 if sum(predicted) else 0.0,
                "perf/plan_bubble_predicted": self._bubble,
            }
        )
        self._taken.append(self._work(record, owners, sync, measured))
        return self._monitor.observe([seconds * 1e6 for seconds in measured])

    def ratios(self) -> dict[str, float]:
        """Return measured over predicted work of each component in the last steps."""
        return {
            name: fmean(taken[name] for taken in self._taken) * 1e6 / expected
            for name, expected in self._work_us.items()
            if expected
        }

    def _work(
        self, record: FlowRecord, owners: Mapping[str, str], sync: float, measured: list[float]
    ) -> dict[str, float]:
        """Return the seconds that each component worked; one that is alone in its phase has all the time of it."""
        taken = dict.fromkeys(self._work_us, 0.0) | {"actor": sync}
        for span in record.spans:
            if not span.item.stage.transfer:
                taken[owners[span.item.stage.name]] += span.end - span.begin
        for number, (seconds, phase) in enumerate(zip(measured, self.plan.phases, strict=True)):
            if len(phase.stages) == 1 and len(phase.stages[0].components) == 1:
                taken[phase.stages[0].components[0]] = max(0.0, seconds - moving_seconds(record, number))
        return taken


def work_us(case: Case, plan: Plan) -> dict[str, int]:
    """Return the microseconds that each component of a plan works in a step, moving it not included."""
    return {
        name: case.items // phase.chunk * case.components[case.index[name]].time_us[stage.devices][phase.chunk]
        for phase in plan.phases
        for stage in phase.stages
        for name in stage.components
    }


def predicted_bubble(case: Case, plan: Plan) -> float:
    """Return the share of the time of all devices of a plan in which a device has no work, as a flow measures it."""
    found = list(spans(case, plan))
    devices = {device for span in found for device in range(span.first_device, span.first_device + span.devices)}
    worked = sum((span.end - span.start) * span.devices for span in found if span.work == "compute")
    whole = max((span.end for span in found), default=0) * len(devices)
    return 1 - worked / whole if whole else 0.0


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


def moving_seconds(record: FlowRecord, phase: int) -> float:
    """Return how long components were brought to their devices and back in a phase."""
    return sum(
        span.end - span.begin
        for span in record.spans
        if span.item.stage.transfer and span.item.stage.phase // PHASE_STRIDE == phase
    )


def phase_of(plan: Plan, component: str) -> int:
    """Return the number of the phase that a component works in."""
    return next(p for p, phase in enumerate(plan.phases) for stage in phase.stages if component in stage.components)
