"""What was measured of each component, and the case that follows from it.

A profile holds a few points. Between them times and memory are interpolated; beyond them they are extrapolated, marked,
and used only where they take no more memory than some measured point did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from plugrl.errors import ConfigError, one_of
from plugrl.runtime.planner.case import Case, Component


@dataclass(frozen=True)
class Point:
    """One measurement: a chunk of ``chunk`` items on ``devices`` devices."""

    devices: int
    chunk: int
    time_us: int
    work_mib: int


@dataclass(frozen=True)
class Loading:
    """What a component takes on ``devices`` devices while it is loaded, and how long it takes to load and unload it."""

    devices: int
    resident_mib: int
    onload_us: int
    offload_us: int


@dataclass(frozen=True)
class ComponentProfile:
    """The measurements of one component; ``loadings`` has an entry for each number of devices of ``points``."""

    name: str
    points: tuple[Point, ...]
    loadings: tuple[Loading, ...]

    @property
    def largest_mib(self) -> int:
        """The most memory that a measured point took on each device."""
        resident = {loading.devices: loading.resident_mib for loading in self.loadings}
        return max(resident[point.devices] + point.work_mib for point in self.points)


@dataclass(frozen=True)
class Profile:
    """The measurements of all components, in the order of the graph."""

    components: tuple[ComponentProfile, ...]


@dataclass(frozen=True)
class ProfiledCase:
    """A case, and which entries of its tables nobody measured: ``(component, devices, chunk)``.

    ``left_out`` are entries that would need more memory than was ever measured.
    """

    case: Case
    interpolated: frozenset[tuple[str, int, int]] = frozenset()
    extrapolated: frozenset[tuple[str, int, int]] = frozenset()
    left_out: frozenset[tuple[str, int, int]] = frozenset()


@dataclass
class _Marks:
    interpolated: set[tuple[str, int, int]] = field(default_factory=set)
    extrapolated: set[tuple[str, int, int]] = field(default_factory=set)
    left_out: set[tuple[str, int, int]] = field(default_factory=set)


def case_from_profile(
    profile: Profile,
    *,
    devices: int,
    items: int,
    chunks: Sequence[int],
    capacity_mib: int,
    edges: Sequence[tuple[str, str]],
    device_counts: Mapping[str, Sequence[int]] | None = None,
    component_chunks: Mapping[str, Sequence[int]] | None = None,
) -> ProfiledCase:
    """Return the case that a profile describes.

    Over chunks, values are linear between neighbouring measured chunks; over devices they are linear in 1/n, which
    work that divides and work that does not both follow. Times and memory are rounded up.

    Args:
        profile: the measurements, at least one point for each component.
        devices: the devices that are there.
        items: items of one iteration.
        chunks: the permitted granularities.
        capacity_mib: memory of each device.
        edges: pairs of names, the second consuming what the first produces.
        device_counts: the numbers of devices that a component can run on at all; every number where it is not named.
        component_chunks: the granularities that a component can take at all; all of ``chunks`` where it is not named.

    Raises:
        ConfigError: the profile is incomplete, or the case that follows is not valid.
    """
    marks = _Marks()
    components = []
    for measured in profile.components:
        _check(measured)
        counts = (device_counts or {}).get(measured.name, range(1, devices + 1))
        own = (component_chunks or {}).get(measured.name, chunks)
        components.append(_component(measured, [n for n in counts if n <= devices], own, marks))
    index = {component.name: i for i, component in enumerate(components)}
    unknown = [name for edge in edges for name in edge if name not in index]
    if unknown:
        raise ConfigError(f"edges: there is no component {unknown[0]!r} in the profile; there are {one_of(index)}.")
    pairs = tuple(sorted((index[u], index[v]) for u, v in edges))
    case = Case(devices, items, tuple(sorted(chunks)), capacity_mib, tuple(components), pairs)
    return ProfiledCase(
        Case.from_dict(case.to_dict()),
        frozenset(marks.interpolated),
        frozenset(marks.extrapolated),
        frozenset(marks.left_out),
    )


def _component(measured: ComponentProfile, counts: Sequence[int], chunks: Sequence[int], marks: _Marks) -> Component:
    time: dict[int, dict[int, int]] = {}
    work: dict[int, dict[int, int]] = {}
    keys = ("resident_mib", "onload_us", "offload_us")
    loading = {key: {entry.devices: int(getattr(entry, key)) for entry in measured.loadings} for key in keys}
    chosen: dict[str, dict[int, int]] = {key: {} for key in keys}
    profiled = sorted({point.devices for point in measured.points})
    for n in sorted(counts):
        values = {key: _over_devices(row, n) for key, row in loading.items()}
        for m in chunks:
            entry = (measured.name, n, m)
            time_us, is_inside, is_measured = _at(measured.points, profiled, n, m, "time_us")
            work_mib, _, _ = _at(measured.points, profiled, n, m, "work_mib")
            if not is_inside and values["resident_mib"] + work_mib > measured.largest_mib:
                marks.left_out.add(entry)
                continue
            if not is_measured:
                (marks.interpolated if is_inside else marks.extrapolated).add(entry)
            time.setdefault(n, {})[m] = time_us
            work.setdefault(n, {})[m] = work_mib
        if n in time:
            for key, value in values.items():
                chosen[key][n] = value
    return Component(measured.name, time, chosen["resident_mib"], work, chosen["onload_us"], chosen["offload_us"])


def _at(points: Sequence[Point], profiled: Sequence[int], n: int, m: int, key: str) -> tuple[int, bool, bool]:
    """Return a value at (n, m), whether (n, m) is within the measured points, and whether it is one of them."""
    by_count: dict[int, Fraction] = {}
    inside = profiled[0] <= n <= profiled[-1]
    for count in profiled:
        row = {Fraction(point.chunk): Fraction(getattr(point, key)) for point in points if point.devices == count}
        by_count[count] = _line(row, Fraction(m))
        inside = inside and min(row) <= m <= max(row)
    value = by_count[n] if n in by_count else _line({Fraction(1, c): v for c, v in by_count.items()}, Fraction(1, n))
    is_measured = any(point.devices == n and point.chunk == m for point in points)
    return max(0, ceil(value)), inside or is_measured, is_measured


def _over_devices(row: Mapping[int, int], n: int) -> int:
    if n in row:
        return row[n]
    return max(0, ceil(_line({Fraction(1, count): Fraction(value) for count, value in row.items()}, Fraction(1, n))))


def _line(row: Mapping[Fraction, Fraction], x: Fraction) -> Fraction:
    """Return the value at ``x`` on the line through the two nearest known points; constant where only one is known."""
    if x in row or len(row) == 1:
        return row.get(x, next(iter(row.values())))
    known = sorted(row)
    right = next((i for i, place in enumerate(known) if place > x), len(known) - 1)
    right = max(right, 1)
    a, b = known[right - 1], known[right]
    return row[a] + (row[b] - row[a]) * (x - a) / (b - a)


def _check(measured: ComponentProfile) -> None:
    path = f"profile.{measured.name}"
    if not measured.points:
        raise ConfigError(f"{path}: has no measured point.")
    missing = {point.devices for point in measured.points} - {loading.devices for loading in measured.loadings}
    if missing:
        raise ConfigError(f"{path}: memory and loading were not measured on {min(missing)} devices.")
