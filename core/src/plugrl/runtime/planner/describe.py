"""Plans and results in words and rows, for tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.runtime.planner.case import MODES, Case, Phase, Plan
from plugrl.runtime.planner.cost import PhaseCost, phase_costs

MODE_COLUMNS = ("class", "step time", "against the best", "plan", "swapped")
PHASE_COLUMNS = ("phase", "chunks", "loading", "pipeline", "unloading", "bubble", "peak memory")


def mode_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each class of a result: its time, how it compares, and its plan, or why it has none."""
    best = result["by_mode"][result["best"]]["time_us"] if result["best"] else 0
    rows: list[tuple[str, ...]] = []
    for mode in MODES:
        found = result["by_mode"][mode]
        if "infeasible" in found:
            rows.append((mode, "-", "-", f"none: {found['infeasible']}", "-"))
            continue
        ratio = f"{found['time_us'] / best:.3f}" if best else "1.000"
        compared = "best" if mode == result["best"] else f"{ratio} times"
        swapped = ", ".join(found["swapped"]) or "-"
        rows.append((mode, seconds(found["time_us"]), compared, plan_text(Plan.from_dict(found)), swapped))
    return rows


def phase_rows(case: Case, plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for each phase of a valid plan: where its time goes and the memory that it takes."""
    rows: list[tuple[str, ...]] = []
    for phase, cost in zip(plan.phases, phase_costs(case, plan), strict=True):
        rows.append(
            (
                _phase_text(phase),
                f"{case.items // phase.chunk} of {phase.chunk}",
                seconds(cost.load_us),
                seconds(cost.pipe_us),
                seconds(cost.unload_us),
                f"{_bubble(case, phase, cost):.1%}",
                f"{cost.peak_mib:,} of {case.capacity_mib:,} MiB",
            )
        )
    return rows


def plan_text(plan: Plan) -> str:
    """Return a plan in one line: stages side by side are parted by ``|``, phases by ``then``."""
    return " then ".join(f"{_phase_text(phase)} (chunk {phase.chunk})" for phase in plan.phases)


def seconds(microseconds: int) -> str:
    """Return a time for a person."""
    return f"{microseconds / 1e6:,.3f} s" if microseconds >= 100_000 else f"{microseconds / 1e3:.3f} ms"


def _phase_text(phase: Phase) -> str:
    return " | ".join(f"{'+'.join(stage.components)} {stage.devices}" for stage in phase.stages)


def _bubble(case: Case, phase: Phase, cost: PhaseCost) -> float:
    """The share of the device time of the phase's stages that its pipeline leaves unused."""
    chunks = case.items // phase.chunk
    busy = chunks * sum(stage.devices * used.chunk_us for stage, used in zip(phase.stages, cost.stages, strict=True))
    whole = cost.pipe_us * sum(stage.devices for stage in phase.stages)
    return 1 - busy / whole if whole else 0.0
