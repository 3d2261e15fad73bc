"""Cases with loops: an environment and a policy that call each other become one component before the search.

A case names its loops in ``loops``, a list of ``{"env", "policy", "rounds", "slices"}``. The tables of both components
are then those of one round, by devices and by environments; an edge may lead from each of them to the other. The
component that takes their place is named ``env+policy`` after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plugrl.errors import one_of
from plugrl.runtime.planner.case import Case, Component, read_component
from plugrl.runtime.planner.loop import Arrangement, LoopCase, best_arrangement, read_slices
from plugrl.runtime.planner.reader import Reader

Arrangements = dict[tuple[int, int], Arrangement]
"""The best arrangement of a loop by devices and items."""


@dataclass(frozen=True)
class CollapsedCase:
    """A case without loops, and for each component that stands for one how it runs on so many devices."""

    case: Case
    arrangements: Mapping[str, Arrangements]


@dataclass(frozen=True)
class _Loop:
    env: str
    policy: str
    rounds: int
    slices: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.env}+{self.policy}"


def read_case(data: Mapping[str, Any]) -> Case:
    """Read a case in its JSON form, its loops collapsed. Raises ConfigError with every problem and its path."""
    return collapse(data).case


def collapse(data: Mapping[str, Any]) -> CollapsedCase:
    """Read a case and replace each of its loops by one component.

    Time and memory of that component for n devices and m items are those of the loop's best arrangement on at most n
    devices; a pair without one is missing in its tables. Resident memory and loading are the largest over the chunks.

    Raises:
        ConfigError: the case cannot be read; with every problem and its path.
    """
    if not isinstance(data, Mapping) or not data.get("loops"):
        return CollapsedCase(Case.from_dict(data), {})
    arrangements: dict[str, Arrangements] = {}
    reader = Reader("case")
    loops = _read_loops(reader, data)
    reader.finish()
    for loop in loops:
        component, found = _as_component(reader, data, loop)
        reader.finish()
        arrangements[loop.name] = found
        data = _replaced(data, loop, component)
    return CollapsedCase(Case.from_dict(data), arrangements)


def _read_loops(reader: Reader, data: Mapping[str, Any]) -> list[_Loop]:
    names = [c.get("name") for c in reader.items(data.get("components", []), "components") if isinstance(c, Mapping)]
    loops: list[_Loop] = []
    taken: set[str] = set()
    for i, value in enumerate(reader.items(data["loops"], "loops")):
        path = f"loops[{i}]"
        given = reader.mapping(value, path)
        env, policy = (reader.field(given, key, path, reader.text, str) for key in ("env", "policy"))
        for key, name in (("env", env), ("policy", policy)):
            if name and name not in names:
                known = one_of(str(known) for known in names)
                reader.problem(f"{path}.{key}", f"there is no component {name!r}; there are {known}.")
            elif name in taken or (key == "policy" and name == env):
                reader.problem(f"{path}.{key}", f"{name!r} is part of a loop twice.")
        taken |= {env, policy}
        loops.append(_Loop(env, policy, reader.field(given, "rounds", path, reader.integer(1), int),
                           read_slices(reader, given, path)))  # fmt: skip
    return loops


def _as_component(reader: Reader, data: Mapping[str, Any], loop: _Loop) -> tuple[Component, Arrangements]:
    components = data["components"]
    place = {component["name"]: i for i, component in enumerate(components)}
    positions = [place[loop.env], place[loop.policy]]
    env, policy = (read_component(reader, components[i], f"components[{i}]") for i in positions)
    devices = reader.field(data, "devices", "", reader.integer(1), int)
    capacity = reader.field(data, "capacity_mib", "", reader.integer(0), int)
    chunks = reader.field(data, "chunks", "", reader.items, list)
    counts = [reader.integer(1)(chunk, f"chunks[{i}]") for i, chunk in enumerate(chunks)]
    reader.finish()
    found: Arrangements = {}
    for m in counts:
        slices = tuple(count for count in loop.slices if m % count == 0)
        case = LoopCase(devices, m, loop.rounds, slices, capacity, env, policy)
        for n in range(1, devices + 1):
            best = best_arrangement(replace(case, devices=n))
            if best is not None:
                found[n, m] = best
    return _component(loop.name, env, policy, found), found


def _component(name: str, env: Component, policy: Component, found: Arrangements) -> Component:
    time: dict[int, dict[int, int]] = {}
    work: dict[int, dict[int, int]] = {}
    resident: dict[int, int] = {}
    onload: dict[int, int] = {}
    offload: dict[int, int] = {}
    for (n, m), best in found.items():
        a, b, q = best.env_devices, best.policy_devices, m // best.slices
        join = sum if best.is_shared else max
        time.setdefault(n, {})[m] = best.time_us
        work.setdefault(n, {})[m] = max(env.work_mib[a][q], policy.work_mib[b][q])
        resident[n] = max(resident.get(n, 0), join((env.resident_mib[a], policy.resident_mib[b])))
        onload[n] = max(onload.get(n, 0), join((env.onload_us[a], policy.onload_us[b])))
        offload[n] = max(offload.get(n, 0), join((env.offload_us[a], policy.offload_us[b])))
    return Component(name, time, resident, work, onload, offload)


def _replaced(data: Mapping[str, Any], loop: _Loop, component: Component) -> dict[str, Any]:
    """Return the case with the loop's components replaced by one, which stands where the first of them stood."""
    both = {loop.env, loop.policy}
    components: list[Any] = []
    for given in data["components"]:
        if given["name"] not in both:
            components.append(given)
        elif loop.name not in [other["name"] for other in components]:
            components.append(component.to_dict())
    renamed = [
        [loop.name if name in both else name for name in edge] if isinstance(edge, list | tuple) else edge
        for edge in data.get("edges", [])
    ]
    edges = [edge for edge in renamed if edge != [loop.name, loop.name]]
    return {**data, "components": components, "edges": edges, "loops": []}
