"""The choices of device counts for one stage at one chunk size, in columns, for the search."""

from __future__ import annotations

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
        profiles = [self._profile(i, chunk) for i in members(stage)]
        devices = profiles[0].devices
        if any(profile.devices != devices for profile in profiles):
            devices = device_choices(self.case, stage, chunk)
        profiles = [profile.at(devices) for profile in profiles]
        out = [profile for i, profile in zip(members(stage), profiles, strict=True) if swapped >> i & 1]
        resident = _total([profile.resident for profile in profiles], devices)
        work = list(map(max, *works)) if len(works := [p.work for p in profiles]) > 1 else works[0]
        columns = [
            devices,
            _total([profile.time for profile in profiles], devices),
            _total([profile.onload for profile in out], devices),
            _total([profile.offload for profile in out], devices),
            list(map(sub, resident, _total([profile.resident for profile in out], devices))),
            list(map(add, resident, work)),
        ]
        capacity = self.case.capacity_mib
        if max(columns[-1], default=0) > capacity:
            columns = _select(columns, [row for row, need in enumerate(columns[-1]) if need <= capacity])
        if not columns[0]:
            return None
        devices, *values = _without_dominated(columns)
        least = (column if _never_rises(column) else list(accumulate(column, min)) for column in values)
        return StageTable(devices, *values, *least)

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
        columns = [self.devices, self.time, self.onload, self.offload, self.resident, self.work]
        return _Profile(*_select(columns, [row_of[n] for n in devices]))


def device_choices(case: Case, stage: int, chunk: int) -> list[int]:
    """Return the numbers of devices for which every component of a stage is profiled at this chunk, ascending."""
    first, *others = [case.components[i].time_us for i in members(stage)]
    return sorted(
        n
        for n, times in first.items()
        if chunk in times and n <= case.devices and (not others or all(chunk in other.get(n, ()) for other in others))
    )


def _total(columns: list[list[int]], like: list[int]) -> list[int]:
    """Add columns; zeros, as long as ``like``, where there are none."""
    if not columns:
        return [0] * len(like)
    return reduce(lambda first, second: list(map(add, first, second)), columns)


def _select(columns: list[list[int]], rows: list[int]) -> list[list[int]]:
    return [[column[row] for row in rows] for column in columns]


def _never_rises(column: list[int]) -> bool:
    return all(map(ge, column, islice(column, 1, None)))


def _without_dominated(columns: list[list[int]]) -> list[list[int]]:
    """Leave out rows that are no better in anything than one of the last rows kept, which have fewer devices."""
    time = columns[1]
    if all(map(gt, time, islice(time, 1, None))):
        return columns
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
