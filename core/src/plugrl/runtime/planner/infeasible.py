"""Why a class has no plan, and the error when none has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plugrl.errors import UserError
from plugrl.runtime.planner.case import MODES, Case, Mode, ModePlan, Result
from plugrl.runtime.planner.graph import down_closed_sets, members, shapes
from plugrl.runtime.planner.stage_table import device_choices

_MEANING = {
    "structure": "the graph allows no plan of this class",
    "devices": "there are too few devices for its stages",
    "profile": "no choice of devices and chunk was profiled for all components",
    "memory": "no choice of devices and chunk fits the memory",
}


@dataclass(frozen=True)
class TightestNeed:
    """The least memory with which a component runs alone, on how many devices and at which chunk."""

    component: str
    mib: int
    devices: int
    chunk: int


class NoPlan(UserError):
    """No class has a valid plan: the reason for each, and the component that needs most where memory is the reason."""

    def __init__(self, reasons: Mapping[Mode, str], tightest: TightestNeed | None, capacity_mib: int) -> None:
        lines = ["There is no valid plan."]
        lines += [f"  {mode}: {reason} ({_MEANING[reason]})" for mode, reason in reasons.items()]
        if tightest is not None:
            lines.append(
                f"{tightest.component} needs at least {tightest.mib} MiB on each device, on {tightest.devices} of them "
                f"and in chunks of {tightest.chunk}; a device has {capacity_mib} MiB."
            )
        super().__init__("\n".join(lines))
        self.reasons = dict(reasons)
        self.tightest = tightest
        self.capacity_mib = capacity_mib

    def __reduce__(self) -> tuple[type[NoPlan], tuple[Mapping[Mode, str], TightestNeed | None, int]]:
        return type(self), (self.reasons, self.tightest, self.capacity_mib)


def require_plan(case: Case, result: Result) -> ModePlan:
    """Return the best plan of a result. Raises NoPlan where it has none."""
    best = result.best_plan()
    if best is not None:
        return best
    reasons = {mode: result.by_mode[mode].infeasible for mode in MODES}
    tightest = tightest_need(case) if "memory" in reasons.values() else None
    raise NoPlan(reasons, tightest, case.capacity_mib)


def tightest_need(case: Case) -> TightestNeed | None:
    """Return the component whose smallest need is the largest, None if no component was profiled."""
    found = []
    for i, component in enumerate(case.components):
        needs = [
            (component.resident_mib[n] + component.work_mib[n][chunk], n, chunk)
            for chunk in case.chunks
            for n in device_choices(case, 1 << i, chunk)
        ]
        if needs:
            mib, n, chunk = min(needs)
            found.append((mib, -i, TightestNeed(component.name, mib, n, chunk)))
    return max(found)[2] if found else None


def reason_for(case: Case, mode: Mode) -> str:
    """Return why a class has no valid plan: the first of structure, devices, profile and memory that rules it out."""
    count = len(case.components)
    fewest_components, fewest_devices = {"temporal": (1, 1), "spatial": (2, count), "hybrid": (3, 2)}[mode]
    if count < fewest_components:
        return "structure"
    if case.devices < fewest_devices:
        return "devices"
    return "memory" if _has_profile(case, mode) else "profile"


def _has_profile(case: Case, mode: Mode) -> bool:
    """Whether some plan of the class breaks no rule but the one on memory."""
    whole = (1 << len(case.components)) - 1
    if mode == "spatial":
        return any(_runs(case, shape.stages) for shape in shapes(whole, case.edges) if shape.is_single)
    if mode == "temporal":
        return all(_runs(case, (1 << i,)) for i in members(whole))
    return _has_hybrid_profile(case, whole)


def _has_hybrid_profile(case: Case, whole: int) -> bool:
    plain, piped = {0}, set()
    sets = down_closed_sets(len(case.components), case.edges)
    for group in sets[1:]:
        for before in sets:
            rest = group & ~before
            if before & ~group or not rest or not (before in plain or before in piped):
                continue
            usable = [
                shape for shape in shapes(rest, case.edges)
                if not (rest == whole and shape.is_single) and _runs(case, shape.stages)
            ]  # fmt: skip
            if not usable:
                continue
            if before in plain and rest & (rest - 1) == 0:
                plain.add(group)
            if before in piped or rest & (rest - 1):
                piped.add(group)
    return whole in piped


def _runs(case: Case, stages: tuple[int, ...]) -> bool:
    """Whether some chunk and devices are profiled for all stages of a phase."""
    for chunk in case.chunks:
        fewest = [device_choices(case, stage, chunk)[:1] for stage in stages]
        if all(fewest) and sum(least[0] for least in fewest) <= case.devices:
            return True
    return False
