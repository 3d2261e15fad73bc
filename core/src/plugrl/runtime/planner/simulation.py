"""A plan on a virtual clock: workers take chunks as they arrive, event by event.

It shares no formula with the cost model and must agree with it exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from plugrl.runtime.planner.case import Case, Phase, Plan, Stage
from plugrl.runtime.planner.collapse import read_case
from plugrl.runtime.planner.cost import Verdict, find_violation
from plugrl.runtime.planner.graph import stage_arcs


@dataclass(frozen=True, slots=True)
class Span:
    """What a group of devices does from ``start`` to ``end``, in microseconds since the iteration began.

    ``work`` is ``compute``, ``onload`` or ``offload``; ``chunk`` counts from 0 within the phase, -1 for loading. The
    stage's devices are ``first_device`` and the ``devices - 1`` after it.
    """

    component: str
    work: str
    phase: int
    stage: int
    chunk: int
    start: int
    end: int
    first_device: int
    devices: int


def simulate(case: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on a plan in the form of ``evaluate``, its time found by running it on a virtual clock.

    Raises:
        ConfigError: the case, or the structure of the plan, cannot be read; with every problem and its path.
    """
    return simulate_plan(read_case(case), Plan.from_dict(plan)).to_dict()


def simulate_plan(case: Case, plan: Plan) -> Verdict:
    """The same as :func:`simulate`, on the typed models."""
    violation = find_violation(case, plan)
    if violation:
        return Verdict(False, violation=violation)
    return Verdict(True, max((span.end for span in spans(case, plan)), default=0), plan.mode)


def spans(case: Case, plan: Plan) -> Iterator[Span]:
    """Yield what every group of devices does, phase by phase; the plan must be valid."""
    clock = 0
    for p, phase in enumerate(plan.phases):
        for part in (_Loading("onload", clock), _Pipeline(clock), _Loading("offload", clock)):
            part.start = clock
            for span in part.run(case, plan, p, phase):
                clock = max(clock, span.end)
                yield span


@dataclass
class _Loading:
    """All stages load, or unload, their swapped components at once, each of them one after another."""

    work: str
    start: int

    def run(self, case: Case, plan: Plan, p: int, phase: Phase) -> Iterator[Span]:
        for s, stage in enumerate(phase.stages):
            clock = self.start
            for name in _in_order(case, stage):
                if name in plan.swapped:
                    component = case.components[case.index[name]]
                    table = component.onload_us if self.work == "onload" else component.offload_us
                    begin, clock = clock, clock + table[stage.devices]
                    yield Span(name, self.work, p, s, -1, begin, clock, first_device(phase, s), stage.devices)


@dataclass
class _Pipeline:
    """The stages of a phase: each takes the next chunk when all stages before it have sent it."""

    start: int

    def run(self, case: Case, plan: Plan, p: int, phase: Phase) -> Iterator[Span]:
        count = len(phase.stages)
        groups = [sum(1 << case.index[name] for name in stage.components) for stage in phase.stages]
        after = stage_arcs(groups, case.edges)
        missing = [[sum(s in following for following in after)] * (case.items // phase.chunk) for s in range(count)]
        ready = [deque(j for j, number in enumerate(waiting) if number == 0) for waiting in missing]
        idle = [True] * count
        events: list[tuple[int, int, int]] = []
        clock = self.start
        while True:
            for s in range(count):
                if idle[s] and ready[s]:
                    chunk, begin = ready[s].popleft(), clock
                    for span in _compute(case, p, phase, s, chunk, begin):
                        begin = span.end
                        yield span
                    idle[s] = False
                    heappush(events, (begin, s, chunk))
            if not events:
                return
            clock, s, chunk = heappop(events)
            idle[s] = True
            for following in after[s]:
                missing[following][chunk] -= 1
                if missing[following][chunk] == 0:
                    ready[following].append(chunk)


def _compute(case: Case, p: int, phase: Phase, s: int, chunk: int, begin: int) -> Iterator[Span]:
    stage = phase.stages[s]
    for name in _in_order(case, stage):
        end = begin + case.components[case.index[name]].time_us[stage.devices][phase.chunk]
        yield Span(name, "compute", p, s, chunk, begin, end, first_device(phase, s), stage.devices)
        begin = end


def first_device(phase: Phase, stage: int) -> int:
    """Return the first device of a stage: stages take contiguous ranges in their order, from device 0 on."""
    return sum(before.devices for before in phase.stages[:stage])


def _in_order(case: Case, stage: Stage) -> list[str]:
    return sorted(stage.components, key=case.index.__getitem__)
