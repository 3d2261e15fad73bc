"""The choices for one phase: every trade between its time and its memory that may be part of an optimal plan.

The search is best-first over boxes. A box holds, for each stage, a range of rows of its table; its bound takes for each
stage the best values of the range that leave the other stages their fewest devices. Boxes are taken from a heap in the
order of the key by which plans are compared, and cut in two until one row is left in each range. Hence choices come out
in the order of their key, and one is kept unless an earlier one takes no more memory. Nothing is left out that could be
in an optimal plan, ties included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from plugrl.runtime.planner.case import Case
from plugrl.runtime.planner.graph import Shape, members, pipe_time
from plugrl.runtime.planner.stage_table import StageTable, Tables
from plugrl.runtime.planner.staircase import Staircase

Place = tuple[int, int, int, int]
"""Where a component stands in its phase: position of the stage, devices, minus the chunk, 1 if it is swapped."""


@dataclass(frozen=True, slots=True)
class PhaseChoice:
    """One way to run the components of a phase.

    ``places`` has the components in ascending order of their index.
    """

    time: int
    swaps: int
    devices: int
    places: tuple[Place, ...]
    held: int
    need: int
    shape: Shape
    chunk: int
    swapped: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Slack:
    """Memory that makes no difference: with at most so much held, or needed, everything else fits beside it."""

    held: int
    need: int

    @classmethod
    def beside(cls, tables: Tables, group: int) -> Slack:
        """Return what components outside of ``group`` surely leave, whatever is chosen for them."""
        others = [i for i in range(len(tables.case.components)) if not group >> i & 1]
        resident = sum(tables.most_resident[i] for i in others)
        work = max((tables.most_work[i] for i in others), default=0)
        return cls(held=tables.case.capacity_mib - resident - work, need=tables.case.capacity_mib - resident)


def phase_choices(tables: Tables, group: int, shapes: Sequence[Shape], *, is_whole: bool) -> list[PhaseChoice]:
    """Return the choices for a phase in the order of their key, each with less memory than those before it.

    Args:
        group: the set of its components.
        shapes: the cuts into stages to choose from.
        is_whole: the phase is the whole iteration, so that only the best choice counts and nothing is ever swapped.
    """
    slack = Slack.beside(tables, group)
    found: list[PhaseChoice] = []
    border = Staircase()
    for choice in _in_order(tables, group, shapes, border, slack, is_whole):
        found.append(choice)
        if is_whole:
            break
    return found


def _in_order(
    tables: Tables, group: int, shapes: Sequence[Shape], border: Staircase, slack: Slack, is_whole: bool
) -> Iterator[PhaseChoice]:
    heap: list[tuple[Any, ...]] = []
    for runner in _runs(tables, group, shapes, slack, is_whole):
        runner.start(heap)
    while heap:
        _, _, _, is_choice, _, runner, low, high, held, need = heappop(heap)
        if border.covers(max(held, slack.held), max(need, slack.need)):
            continue
        if is_choice:
            border.add(max(held, slack.held), max(need, slack.need))
            yield runner.choice(low)
        else:
            runner.cut(heap, low, high)


def _runs(
    tables: Tables, group: int, shapes: Sequence[Shape], slack: Slack, is_whole: bool
) -> Iterator[_Run]:
    case = tables.case
    resident = sum(tables.most_resident[i] for i in members(group))
    swaps = [0] if is_whole or resident <= slack.held else list(_subsets(group))
    for shape in shapes:
        for chunk in case.chunks:
            for swapped in swaps:
                found = [tables.get(stage, chunk, swapped) for stage in shape.stages]
                complete = [table for table in found if table is not None]
                if len(complete) == len(found):
                    yield _Run(case, group, shape, chunk, swapped, complete, slack)


class _Run:
    """The search within one shape, chunk and set of swapped components."""

    _serial = count()

    def __init__(
        self,
        case: Case,
        group: int,
        shape: Shape,
        chunk: int,
        swapped: int,
        tables: Sequence[StageTable],
        slack: Slack,
    ) -> None:
        self._group = group
        self._shape = shape
        self._chunk = chunk
        self._swapped = swapped
        self._swaps = swapped.bit_count()
        self._repeats = case.items // chunk - 1
        self._total = case.devices
        self._tables = tables
        self._time_of = [(table.devices, table.time, table.least_time) for table in tables]
        self._rest_of = [(t.least_onload, t.least_offload, t.least_held, t.least_need) for t in tables]
        self._tracks_memory = any(max(table.held) > slack.held or max(table.need) > slack.need for table in tables)
        self._stage_of = [next(s for s, stage in enumerate(shape.stages) if stage >> i & 1) for i in members(group)]

    def start(self, heap: list[tuple[Any, ...]]) -> None:
        """Push the box of everything."""
        self._push(heap, [0] * len(self._tables), [len(table.devices) - 1 for table in self._tables])

    def cut(self, heap: list[tuple[Any, ...]], low: list[int], high: list[int]) -> None:
        """Push both halves of a box, cut where the times of a stage differ most."""
        widest, most, chosen = -1, -1, 0
        for stage, (_, time, least) in enumerate(self._time_of):
            a, b = low[stage], high[stage]
            if a < b:
                spread = time[a] - least[b]
                if spread > widest or (spread == widest and b - a > most):
                    widest, most, chosen = spread, b - a, stage
        lower, upper = high.copy(), low.copy()
        lower[chosen] = (low[chosen] + high[chosen]) // 2
        upper[chosen] = lower[chosen] + 1
        self._push(heap, low, lower)
        self._push(heap, upper, high)

    def choice(self, rows: Sequence[int]) -> PhaseChoice:
        """Return the choice of one row for each stage."""
        chosen = list(zip(self._tables, rows, strict=True))
        counts = tuple(table.devices[row] for table, row in chosen)
        pipe = self._time([table.time[row] for table, row in chosen])
        return PhaseChoice(
            time=pipe + max(table.onload[row] for table, row in chosen) + max(t.offload[row] for t, row in chosen),
            swaps=self._swaps,
            devices=sum(counts),
            places=self._places(rows),
            held=max(table.held[row] for table, row in chosen),
            need=max(table.need[row] for table, row in chosen),
            shape=self._shape,
            chunk=self._chunk,
            swapped=self._swapped,
            counts=counts,
        )

    def _push(self, heap: list[tuple[Any, ...]], low: list[int], high: list[int]) -> None:
        """Push a box, narrowed to what leaves each stage its fewest devices; nothing if it is empty."""
        free = self._total
        for (devices, _, _), row in zip(self._time_of, low, strict=True):
            free -= devices[row]
        if free < 0:
            return
        narrowed, times = [], []
        for (devices, _, least), first, last in zip(self._time_of, low, high, strict=True):
            most = devices[first] + free
            if devices[last] > most:
                last = bisect_right(devices, most, first, last) - 1
            narrowed.append(last)
            times.append(least[last])
        used = self._total - free
        if narrowed == low:
            choice = self.choice(low)
            key = (choice.time, self._swaps, used, 1, choice.places)
            heappush(heap, (*key, self, low, low, choice.held, choice.need))
            return
        time = self._time(times)
        onload, offload, held, need = 0, 0, 0, 0
        if self._swaps or self._tracks_memory:
            for (onloads, offloads, helds, needs), row in zip(self._rest_of, narrowed, strict=True):
                onload, offload = max(onload, onloads[row]), max(offload, offloads[row])
                held, need = max(held, helds[row]), max(need, needs[row])
        time += onload + offload
        heappush(heap, (time, self._swaps, used, 0, next(self._serial), self, low, narrowed, held, need))

    def _time(self, times: Sequence[int]) -> int:
        if self._shape.is_chain:
            return sum(times) + self._repeats * max(times)
        return pipe_time(self._shape.paths, times, self._repeats + 1)

    def _places(self, rows: Sequence[int]) -> tuple[Place, ...]:
        counts = [table.devices[row] for table, row in zip(self._tables, rows, strict=True)]
        return tuple(
            (stage, counts[stage], -self._chunk, self._swapped >> i & 1)
            for i, stage in zip(members(self._group), self._stage_of, strict=True)
        )


def _subsets(group: int) -> Iterator[int]:
    subset = 0
    while True:
        yield subset
        if subset == group:
            return
        subset = (subset - group) & group
