"""The best arrangement of an environment and a policy that call each other: sharing devices, or split and in slices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.runtime.planner.case import Component, read_component
from plugrl.runtime.planner.reader import Reader
from plugrl.runtime.planner.timing import loop_time


@dataclass(frozen=True)
class LoopCase:
    """``items`` environments that step ``rounds`` times; times are those of one round.

    ``slices`` are the permitted cuts of the environments, each dividing ``items``. The tables of ``env`` and ``policy``
    are by devices and by the environments of one slice.
    """

    devices: int
    items: int
    rounds: int
    slices: tuple[int, ...]
    capacity_mib: int
    env: Component
    policy: Component

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LoopCase:
        """Read the JSON form. Raises ConfigError with every problem and its path."""
        reader = Reader("case")
        loop = reader.mapping(data, "")
        if loop.get("kind", "loop") != "loop":
            reader.problem("kind", f"must be 'loop', not {loop['kind']!r}; other cases are for solve.")
        devices, items, rounds = (
            reader.field(loop, key, "", reader.integer(1), int) for key in ("devices", "items", "rounds")
        )
        slices = read_slices(reader, loop, "")
        for i, count in enumerate(slices):
            if items % count:
                reader.problem(f"slices[{i}]", f"{count} does not divide the {items} items.")
        capacity = reader.field(loop, "capacity_mib", "", reader.integer(0), int)
        env, policy = (_read_side(reader, loop, key) for key in ("env", "policy"))
        reader.finish()
        return cls(devices, items, rounds, slices, capacity, env, policy)


@dataclass(frozen=True)
class Arrangement:
    """How a loop runs: ``shared`` on the same devices, or ``split`` over two groups of them, in slices."""

    arrangement: str
    time_us: int
    slices: int
    env_devices: int
    policy_devices: int

    @property
    def is_shared(self) -> bool:
        """Whether both sides run on the same devices."""
        return self.arrangement == "shared"

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.env_devices if self.is_shared else self.env_devices + self.policy_devices

    @property
    def order(self) -> tuple[int, bool, int, int, int]:
        """The key that compares arrangements; the smallest is the best."""
        return (self.time_us, not self.is_shared, self.slices, self.devices, self.env_devices)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        where = (
            {"devices": self.devices}
            if self.is_shared
            else {"env_devices": self.env_devices, "policy_devices": self.policy_devices}
        )
        return {"arrangement": self.arrangement, **where, "slices": self.slices, "time_us": self.time_us}


def solve_loop(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best arrangement of a loop case.

    ``{"arrangement": "shared", "devices", ...}``, ``{"arrangement": "split", "env_devices", "policy_devices", ...}``,
    both with ``slices`` and ``time_us``, or ``{"infeasible": "profile" | "memory"}``.

    Raises:
        ConfigError: the case cannot be read; with every problem and its path.
    """
    best = best_arrangement(loop := LoopCase.from_dict(case))
    if best is not None:
        return best.to_dict()
    return {"infeasible": "memory" if _is_profiled(loop) else "profile"}


def best_arrangement(loop: LoopCase) -> Arrangement | None:
    """Return the best arrangement that fits, None if there is none. Exact, ties included."""
    return min((*_shared(loop), *_split(loop)), key=lambda found: found.order, default=None)


def _shared(loop: LoopCase) -> Iterator[Arrangement]:
    env, policy, m = loop.env, loop.policy, loop.items
    for n in _profiled(env, loop, m):
        if m not in policy.time_us.get(n, {}):
            continue
        need = env.resident_mib[n] + policy.resident_mib[n] + max(env.work_mib[n][m], policy.work_mib[n][m])
        if need <= loop.capacity_mib:
            yield Arrangement("shared", loop.rounds * (env.time_us[n][m] + policy.time_us[n][m]), 1, n, n)


def _split(loop: LoopCase) -> Iterator[Arrangement]:
    """For each slicing and each useful number of environment devices, the fastest policy that is left.

    The time grows with both round times, so that more devices are useful only where they are faster.
    """
    for slices in loop.slices:
        q = loop.items // slices
        policies = _useful(loop.policy, loop, q)
        counts = [n for n, _ in policies]
        for n_env, env in _useful(loop.env, loop, q):
            row = bisect_right(counts, loop.devices - n_env) - 1
            if row >= 0:
                n_policy, policy = policies[row]
                yield Arrangement("split", loop_time(env, policy, slices, loop.rounds), slices, n_env, n_policy)


def _useful(side: Component, loop: LoopCase, q: int) -> list[tuple[int, int]]:
    """Return devices and round time of the choices that fit, each faster than all with fewer devices."""
    found: list[tuple[int, int]] = []
    for n in _profiled(side, loop, q):
        fits = side.resident_mib[n] + side.work_mib[n][q] <= loop.capacity_mib
        if fits and (not found or side.time_us[n][q] < found[-1][1]):
            found.append((n, side.time_us[n][q]))
    return found


def _profiled(side: Component, loop: LoopCase, q: int) -> list[int]:
    return sorted(n for n, times in side.time_us.items() if n <= loop.devices and q in times)


def _is_profiled(loop: LoopCase) -> bool:
    """Whether some arrangement has all entries of the tables that it needs."""
    if any(n in _profiled(loop.policy, loop, loop.items) for n in _profiled(loop.env, loop, loop.items)):
        return True
    fewest = [
        (_profiled(loop.env, loop, loop.items // slices)[:1], _profiled(loop.policy, loop, loop.items // slices)[:1])
        for slices in loop.slices
    ]
    return any(env and policy and env[0] + policy[0] <= loop.devices for env, policy in fewest)


def read_slices(reader: Reader, data: Mapping[str, Any], path: str) -> tuple[int, ...]:
    """Read the permitted cuts of the environments."""
    given = reader.field(data, "slices", path, lambda value, inner: reader.items(value, inner, at_least=1), list)
    inner = f"{path}.slices" if path else "slices"
    return tuple(reader.integer(1)(value, f"{inner}[{i}]") for i, value in enumerate(given))


def _read_side(reader: Reader, loop: Mapping[str, Any], key: str) -> Component:
    """Read one side, which needs no name and no times of loading."""
    data: Mapping[str, Any] = reader.field(loop, key, "", reader.mapping, dict)
    none = dict.fromkeys(data.get("time_us", ()) if isinstance(data.get("time_us"), Mapping) else (), 0)
    return read_component(reader, {"onload_us": none, "offload_us": none, **data}, key, named=False)
