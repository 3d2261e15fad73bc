"""The choices of device counts for one stage at one chunk size, in columns, for the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, islice
from operator import add, ge, gt, le, lt, ne, sub

from plugrl.runtime.planner.case import Case
from plugrl.runtime.planner.graph import members

_COMPARED = 8
"""Kept rows that a new one is compared with: a row too many only takes time."""

Column = list[int]


@dataclass(frozen=True)
class StageTable:
    """One row for each number of devices that may be best, ascending; the values are those of the cost model.

    ``least_*`` hold the smallest value up to each row: bounds for all choices that take at most so many devices.
    """

    devices: Column
    time: Column
    onload: Column
    offload: Column
    held: Column
    need: Column
    least_time: Column
    least_onload: Column
    least_offload: Column
    least_held: Column
    least_need: Column


class Tables:
    """The tables of the stages of a case, each made once.

    ``most_resident`` and ``most_work`` are the largest entries of each component.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._tables: dict[tuple[int, int, int], StageTable | None] = {}
        self._bases: dict[tuple[int, int], _Base] = {}
        self._profiles: dict[tuple[int, int], _Profile] = {}
        self.most_resident = [max(component.resident_mib.values(), default=0) for component in case.components]
        self.most_work = [
            max((max(row.values(), default=0) for row in component.work_mib.values()), default=0)
            for component in case.components
        ]

    def get(self, stage: int, chunk: int, swapped: int) -> StageTable | None:
        """Return the choices for a stage that fit the capacity, None if there are none.

        Args:
            stage: the set of its components.
            chunk: items in a chunk.
            swapped: the set of components that are unloaded between their phases, those of other stages included.
        """
        key = (stage, chunk, swapped & stage)
        if key not in self._tables:
            self._tables[key] = self._make(*key)
        return self._tables[key]

    def _make(self, stage: int, chunk: int, swapped: int) -> StageTable | None:
        base = self._base(stage, chunk)
        if not base.time:
            return None
        out = [profile for i, profile in zip(members(stage), base.profiles, strict=True) if swapped >> i & 1]
        nothing = [0] * len(base.time)
        columns = [
            base.profiles[0].devices,
            base.time,
            _total([profile.onload for profile in out]) or nothing,
            _total([profile.offload for profile in out]) or nothing,
            list(map(sub, base.resident, _total([profile.resident for profile in out]))) if out else base.resident,
            base.need,
        ]
        devices, *values = columns if base.time_falls else _without_dominated(columns)
        least = (column if _never_rises(column) else list(accumulate(column, min)) for column in values)
        return StageTable(devices, *values, *least)

    def _base(self, stage: int, chunk: int) -> _Base:
        if (stage, chunk) not in self._bases:
            profiles = [self._profile(i, chunk) for i in members(stage)]
            devices = profiles[0].devices
            if any(profile.devices != devices for profile in profiles):
                devices = device_choices(self.case, stage, chunk)
            self._bases[stage, chunk] = _Base.of([p.at(devices) for p in profiles], self.case.capacity_mib)
        return self._bases[stage, chunk]

    def _profile(self, i: int, chunk: int) -> _Profile:
        if (i, chunk) not in self._profiles:
            self._profiles[i, chunk] = _Profile.of(self.case, i, chunk)
        return self._profiles[i, chunk]


@dataclass(frozen=True)
class _Profile:
    """The profile of one component at one chunk, in columns."""

    devices: list[int]
    time: list[int]
    onload: list[int]
    offload: list[int]
    resident: list[int]
    work: list[int]

    @classmethod
    def of(cls, case: Case, i: int, chunk: int) -> _Profile:
        component = case.components[i]
        devices = device_choices(case, 1 << i, chunk)
        times, works = component.time_us, component.work_mib
        return cls(
            devices,
            [times[n][chunk] for n in devices],
            [component.onload_us[n] for n in devices],
            [component.offload_us[n] for n in devices],
            [component.resident_mib[n] for n in devices],
            [works[n][chunk] for n in devices],
        )

    def at(self, devices: list[int]) -> _Profile:
        """Return the rows of these numbers of devices, all of which are there."""
        if len(devices) == len(self.devices):
            return self
        row_of = {n: row for row, n in enumerate(self.devices)}
        return self.rows([row_of[n] for n in devices])

    def rows(self, rows: Sequence[int]) -> _Profile:
        """Return some of the rows."""
        columns = [self.devices, self.time, self.onload, self.offload, self.resident, self.work]
        return _Profile(*_select(columns, rows))


@dataclass(frozen=True)
class _Base:
    """What the tables of a stage at one chunk have in common, whatever is swapped: the rows that fit the capacity."""

    profiles: list[_Profile]
    time: list[int]
    resident: list[int]
    need: list[int]
    time_falls: bool

    @classmethod
    def of(cls, profiles: list[_Profile], capacity: int) -> _Base:
        resident = _total([profile.resident for profile in profiles])
        works = [profile.work for profile in profiles]
        need = list(map(add, resident, map(max, *works) if len(works) > 1 else works[0]))
        if max(need, default=0) > capacity:
            rows = [row for row, needed in enumerate(need) if needed <= capacity]
            profiles = [profile.rows(rows) for profile in profiles]
            resident, need = _select([resident, need], rows)
        time = _total([profile.time for profile in profiles])
        return cls(profiles, time, resident, need, all(map(gt, time, islice(time, 1, None))))


def device_choices(case: Case, stage: int, chunk: int) -> list[int]:
    """Return the numbers of devices for which every component of a stage is profiled at this chunk, ascending."""
    first, *others = [case.components[i].time_us for i in members(stage)]
    return sorted(
        n
        for n, times in first.items()
        if chunk in times and n <= case.devices and (not others or all(chunk in other.get(n, ()) for other in others))
    )


def _total(columns: list[list[int]]) -> list[int]:
    """Add columns; the empty list where there are none."""
    return reduce(lambda first, second: list(map(add, first, second)), columns) if columns else []


def _select(columns: list[list[int]], rows: Sequence[int]) -> list[list[int]]:
    if rows and rows[-1] - rows[0] == len(rows) - 1:  # All rows from one to another, as is usual.
        return [column[rows[0] : rows[-1] + 1] for column in columns]
    return [[column[row] for row in rows] for column in columns]


def _never_rises(column: list[int]) -> bool:
    return all(map(ge, column, islice(column, 1, None)))


def _without_dominated(columns: list[list[int]]) -> list[list[int]]:
    """Leave out rows that are no better in anything than one of the last rows kept, which have fewer devices."""
    values = list(zip(*columns[1:], strict=True))
    if all(map(_never_rises, columns[1:])):
        changed = map(ne, values, islice(values, 1, None))
        return _select(columns, [0, *(row for row, is_other in enumerate(changed, 1) if is_other)])
    lowest = values[0]
    kept = [0]
    for row, value in enumerate(values[1:], 1):
        if any(map(lt, value, lowest)):
            lowest = tuple(map(min, value, lowest))
        elif any(all(map(le, values[other], value)) for other in kept[: -_COMPARED - 1 : -1]):
            continue
        kept.append(row)
    return _select(columns, kept)
