"""What a plan costs and whether it is valid: the rules of the cost model, in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.runtime.planner.case import Case, Mode, Phase, Plan, Stage
from plugrl.runtime.planner.graph import pipe_time, stage_paths


@dataclass(frozen=True)
class Verdict:
    """Whether a plan is valid: its time and class, or the first rule that it breaks."""

    ok: bool
    time_us: int = 0
    mode: Mode | None = None
    violation: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        if self.ok:
            return {"ok": True, "time_us": self.time_us, "mode": self.mode}
        return {"ok": False, "violation": self.violation}


@dataclass(frozen=True)
class StageCost:
    """What a stage takes: microseconds for one chunk, MiB on each of its devices.

    ``need_mib`` is what the phase needs there while it runs, ``held_mib`` what stays while other phases run.
    """

    chunk_us: int
    onload_us: int
    offload_us: int
    need_mib: int
    held_mib: int


@dataclass(frozen=True)
class PhaseCost:
    """What a phase takes. ``peak_mib`` counts what the other phases leave on the devices."""

    load_us: int
    pipe_us: int
    unload_us: int
    peak_mib: int
    stages: tuple[StageCost, ...]

    @property
    def time_us(self) -> int:
        """The whole phase, loading and unloading included."""
        return self.load_us + self.pipe_us + self.unload_us


def evaluate(case: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a plan is valid, its time and its class: ``{"ok": True, "time_us", "mode"}`` or
    ``{"ok": False, "violation"}`` with the first rule that is broken.

    Raises:
        ConfigError: the case, or the structure of the plan, cannot be read; with every problem and its path.
    """
    from plugrl.runtime.planner.collapse import read_case

    return evaluate_plan(read_case(case), Plan.from_dict(plan)).to_dict()


def evaluate_plan(case: Case, plan: Plan) -> Verdict:
    """The same as :func:`evaluate`, on the typed models."""
    violation = find_violation(case, plan)
    if violation:
        return Verdict(False, violation=violation)
    return Verdict(True, sum(cost.time_us for cost in phase_costs(case, plan)), plan.mode)


def find_violation(case: Case, plan: Plan) -> str:
    """Return the first rule that the plan breaks, an empty text where it breaks none."""
    placed = [name for phase in plan.phases for stage in phase.stages for name in stage.components]
    if sorted(placed) != sorted(case.index) or not set(plan.swapped) <= case.index.keys():
        return "cover"
    phase_of = {name: p for p, phase in enumerate(plan.phases) for s in phase.stages for name in s.components}
    position = [phase_of[component.name] for component in case.components]
    if any(position[u] > position[v] for u, v in case.edges):
        return "order"
    if any(_paths(case, phase) is None for phase in plan.phases):
        return "cycle"
    if any(len(phase.stages) == 1 and len(phase.stages[0].components) > 1 for phase in plan.phases):
        return "shape"
    counts = [[stage.devices for stage in phase.stages] for phase in plan.phases]
    if any(min(devices) < 1 or sum(devices) > case.devices for devices in counts):
        return "devices"
    if not all(_profiled(case, phase) for phase in plan.phases):
        return "profile"
    return "memory" if max(cost.peak_mib for cost in phase_costs(case, plan)) > case.capacity_mib else ""


def phase_costs(case: Case, plan: Plan) -> list[PhaseCost]:
    """Return what each phase takes; the plan must break no rule before the one on memory."""
    swapped = set(plan.swapped)
    stages = [[_stage_cost(case, stage, phase.chunk, swapped) for stage in phase.stages] for phase in plan.phases]
    held = [max(stage.held_mib for stage in costs) for costs in stages]
    found = []
    for p, (phase, costs) in enumerate(zip(plan.phases, stages, strict=True)):
        times = [stage.chunk_us for stage in costs]
        found.append(
            PhaseCost(
                load_us=max(stage.onload_us for stage in costs),
                pipe_us=pipe_time(_paths(case, phase) or (), times, case.items // phase.chunk),
                unload_us=max(stage.offload_us for stage in costs),
                peak_mib=max(stage.need_mib for stage in costs) + sum(held) - held[p],
                stages=tuple(costs),
            )
        )
    return found


def _stage_cost(case: Case, stage: Stage, chunk: int, swapped: set[str]) -> StageCost:
    n = stage.devices
    components = [case.components[case.index[name]] for name in stage.components]
    out = [component for component in components if component.name in swapped]
    resident = sum(component.resident_mib[n] for component in components)
    return StageCost(
        chunk_us=sum(component.time_us[n][chunk] for component in components),
        onload_us=sum(component.onload_us[n] for component in out),
        offload_us=sum(component.offload_us[n] for component in out),
        need_mib=resident + max(component.work_mib[n][chunk] for component in components),
        held_mib=resident - sum(component.resident_mib[n] for component in out),
    )


def _paths(case: Case, phase: Phase) -> tuple[tuple[int, ...], ...] | None:
    groups = [sum(1 << case.index[name] for name in stage.components) for stage in phase.stages]
    return stage_paths(groups, case.edges)


def _profiled(case: Case, phase: Phase) -> bool:
    return phase.chunk in case.chunks and all(
        phase.chunk in case.components[case.index[name]].time_us.get(stage.devices, {})
        for stage in phase.stages
        for name in stage.components
    )
