"""The exact search for the best plan of each class.

Phases are differences of down-closed sets of the component graph. The sets are walked from the smallest to the largest;
each keeps labels: the best ways to have done its components, by the key that compares plans and by the memory that they
take from the others. A label leaves when another has no larger key, holds no more and peaks no higher. To keep only the
fastest way for each set would be wrong, because memory couples the phases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.runtime.planner.case import MODES, Case, Mode, ModePlan, Phase, Plan, Result, Stage
from plugrl.runtime.planner.graph import Shape, down_closed_sets, members, shapes
from plugrl.runtime.planner.phase_search import PhaseChoice, Slack, phase_choices
from plugrl.runtime.planner.stage_table import Tables
from plugrl.runtime.planner.staircase import Staircase

_Placed = tuple[tuple[int, ...], ...]
Key = tuple[int, int, int, int, _Placed]
"""Time, phases, swapped components, devices, and for each component where it stands: compared from left to right."""


@dataclass(frozen=True, slots=True)
class _Label:
    """A way to have done a set of components.

    ``held`` is what its phases leave on the devices while others run, ``peak`` the highest use in one of its phases
    beside all the others of the label.
    """

    key: Key
    held: int
    peak: int
    before: _Label | None = None
    choice: PhaseChoice | None = None


def solve(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best plan of each class and which class is best.

    ``{"best": class or None, "by_mode": {class: plan with "time_us" and "mode" | {"infeasible": reason}}}``. The result
    is exact, ties included.

    Raises:
        ConfigError: the case cannot be read; with every problem and its path.
    """
    from plugrl.runtime.planner.collapse import read_case

    return solve_case(read_case(case)).to_dict()


def solve_case(case: Case) -> Result:
    """The same as :func:`solve`, on the typed models."""
    from plugrl.runtime.planner.infeasible import reason_for

    found: dict[Mode, _Label | None] = _Search(case).best()
    by_mode = {
        mode: ModePlan(mode, _plan_of(case, label), label.key[0]) if label is not None
        else ModePlan(mode, infeasible=reason_for(case, mode))
        for mode, label in ((mode, found[mode]) for mode in MODES)
    }  # fmt: skip
    ranked = [(label.key[0], MODES.index(mode), mode) for mode, label in found.items() if label is not None]
    return Result(min(ranked)[2] if ranked else None, by_mode)


class _Search:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._tables = Tables(case)
        self._whole = (1 << len(case.components)) - 1
        self._sets = down_closed_sets(len(case.components), case.edges)
        self._choices: dict[int, list[PhaseChoice]] = {}

    def best(self) -> dict[Mode, _Label | None]:
        one_phase = self._one_phase()
        plain: dict[int, list[_Label]] = {0: [_Label((0, 0, 0, 0, ((),) * len(self._case.components)), 0, 0)]}
        piped: dict[int, list[_Label]] = {0: []}
        for group in self._sets[1:]:
            plain_next, piped_next = [], []
            for before in self._sets:
                if before & ~group or before == group or (before == 0 and group == self._whole):
                    continue
                rest = group & ~before
                choices = self._phase(rest)
                if rest & (rest - 1) == 0:
                    plain_next += self._extended(plain[before], choices, rest)
                    piped_next += self._extended(piped[before], choices, rest)
                else:
                    piped_next += self._extended(plain[before] + piped[before], choices, rest)
            if group == self._whole:
                plain_next += one_phase["temporal"]
                piped_next += one_phase["hybrid"]
            plain[group] = self._kept(plain_next, group)
            piped[group] = self._kept(piped_next, group)
        return {
            "temporal": _first(plain[self._whole]),
            "spatial": _first(one_phase["spatial"]),
            "hybrid": _first(piped[self._whole]),
        }

    def _phase(self, group: int) -> list[PhaseChoice]:
        if group not in self._choices:
            found = list(shapes(group, self._case.edges))
            self._choices[group] = phase_choices(self._tables, group, found, is_whole=False)
        return self._choices[group]

    def _one_phase(self) -> dict[Mode, list[_Label]]:
        """The best plans of a single phase, by class."""
        every = list(shapes(self._whole, self._case.edges))
        single = [shape for shape in every if shape.is_single]
        shared = [shape for shape in every if not shape.is_single]
        start = [_Label((0, 0, 0, 0, ((),) * len(self._case.components)), 0, 0)]

        def labels(chosen: list[Shape]) -> list[_Label]:
            choices = phase_choices(self._tables, self._whole, chosen, is_whole=True)
            return self._extended(start, choices, self._whole)

        if len(self._case.components) == 1:
            return {"temporal": labels(every), "spatial": [], "hybrid": []}
        return {"temporal": [], "spatial": labels(single), "hybrid": labels(shared)}

    def _extended(self, labels: Iterable[_Label], choices: Iterable[PhaseChoice], group: int) -> list[_Label]:
        capacity = self._case.capacity_mib
        indices = members(group)
        found = []
        for label in labels:
            time, phases, swaps, devices, placed = label.key
            for choice in choices:
                peak = max(label.peak + choice.held, choice.need + label.held)
                if peak > capacity:
                    continue
                places = list(placed)
                for i, place in zip(indices, choice.places, strict=True):
                    places[i] = (phases, *place)
                key = (
                    time + choice.time,
                    phases + 1,
                    swaps + choice.swaps,
                    devices + choice.devices,
                    tuple(places),
                )
                found.append(_Label(key, label.held + choice.held, peak, label, choice))
        return found

    def _kept(self, labels: list[_Label], group: int) -> list[_Label]:
        """Return the labels that no other one replaces, in the order of their key."""
        slack = Slack.beside(self._tables, group)
        border = Staircase()
        kept = []
        for label in sorted(labels, key=lambda label: label.key):
            held, peak = max(label.held, slack.held), max(label.peak, slack.need)
            if not border.covers(held, peak):
                border.add(held, peak)
                kept.append(label)
        return kept


def _first(labels: list[_Label]) -> _Label | None:
    return labels[0] if labels else None


def _plan_of(case: Case, label: _Label) -> Plan:
    phases: list[Phase] = []
    swapped = 0
    at: _Label | None = label
    while at is not None and at.choice is not None:
        choice = at.choice
        swapped |= choice.swapped
        stages = [
            Stage(tuple(case.components[i].name for i in members(stage)), count)
            for stage, count in zip(choice.shape.stages, choice.counts, strict=True)
        ]
        phases.insert(0, Phase(choice.chunk, tuple(stages)))
        at = at.before
    return Plan(tuple(phases), tuple(case.components[i].name for i in members(swapped)))
