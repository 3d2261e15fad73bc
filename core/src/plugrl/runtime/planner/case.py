"""What is planned and what a plan is: typed models of the case format, version 1 of the cost model.

Times are whole microseconds and memory is whole MiB, so that results are exact and plans compare for equality. In the
JSON form numbers that are keys (device counts, chunk sizes) are decimal texts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from plugrl.errors import nearest, one_of
from plugrl.runtime.planner.reader import Reader

Mode = Literal["temporal", "spatial", "hybrid"]
MODES: tuple[Mode, ...] = ("temporal", "spatial", "hybrid")
"""The classes of plans, in the order in which ties between them are decided."""

COST_MODEL = 1
"""Version of the cost model; a plan that another version predicted is not comparable."""


@dataclass(frozen=True)
class Component:
    """The profile of one component. ``n`` is a number of devices, ``m`` of items in a chunk.

    Args:
        name: as in ``cluster.component_placement``.
        time_us: by n and m, time to process one chunk; a pair that is missing is not allowed.
        resident_mib: by n, memory on each of the n devices while the component is loaded.
        work_mib: by n and m, further memory on each device while it processes a chunk.
        onload_us: by n, time to load it.
        offload_us: by n, time to unload it.
    """

    name: str
    time_us: Mapping[int, Mapping[int, int]]
    resident_mib: Mapping[int, int]
    work_mib: Mapping[int, Mapping[int, int]]
    onload_us: Mapping[int, int]
    offload_us: Mapping[int, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "time_us": _table_dict(self.time_us),
            "resident_mib": _row_dict(self.resident_mib),
            "work_mib": _table_dict(self.work_mib),
            "onload_us": _row_dict(self.onload_us),
            "offload_us": _row_dict(self.offload_us),
        }


@dataclass(frozen=True)
class Case:
    """What is to be planned: identical devices, items of one iteration, components and who consumes whose output.

    ``components`` stand in a topological order of ``edges``, which hold indices into it. Each of ``chunks`` divides
    ``items`` and they ascend.
    """

    devices: int
    items: int
    chunks: tuple[int, ...]
    capacity_mib: int
    components: tuple[Component, ...]
    edges: tuple[tuple[int, int], ...] = ()

    @cached_property
    def index(self) -> dict[str, int]:
        """The position of each component by its name."""
        return {component.name: i for i, component in enumerate(self.components)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Read the JSON form. Raises ConfigError with every problem and its path; fields it does not know are left."""
        reader = Reader("case")
        case = _read_case(reader, reader.mapping(data, ""))
        reader.finish()
        return case

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = [component.name for component in self.components]
        return {
            "kind": "plan",
            "devices": self.devices,
            "items": self.items,
            "chunks": list(self.chunks),
            "capacity_mib": self.capacity_mib,
            "components": [component.to_dict() for component in self.components],
            "edges": [[names[u], names[v]] for u, v in self.edges],
        }


@dataclass(frozen=True)
class Stage:
    """Components that share a group of devices and run there one after another for each chunk."""

    components: tuple[str, ...]
    devices: int


@dataclass(frozen=True)
class Phase:
    """A pipeline of stages on disjoint groups of devices, over chunks of ``chunk`` items."""

    chunk: int
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Plan:
    """Phases that run one after another on the same devices.

    ``swapped`` names the components that are unloaded whenever their phase does not run; the others stay loaded.
    """

    phases: tuple[Phase, ...]
    swapped: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        """The class of the plan: collocated, disaggregated or hybrid."""
        stages = [stage for phase in self.phases for stage in phase.stages]
        if len(stages) == len(self.phases):
            return "temporal"
        alone = all(len(stage.components) == 1 for stage in stages)
        return "spatial" if len(self.phases) == 1 and alone else "hybrid"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read the JSON form. Raises ConfigError with every problem of its structure and its path."""
        reader = Reader("plan")
        plan = reader.mapping(data, "")
        phases = [
            _read_phase(reader, phase, f"phases[{i}]")
            for i, phase in enumerate(reader.field(plan, "phases", "", reader.items, list))
        ]
        names = reader.items(plan.get("swapped", []), "swapped")
        swapped = [reader.text(name, f"swapped[{i}]") for i, name in enumerate(names)]
        reader.finish()
        return cls(tuple(phases), tuple(swapped))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "phases": [
                {
                    "chunk": phase.chunk,
                    "stages": [{"components": list(s.components), "devices": s.devices} for s in phase.stages],
                }
                for phase in self.phases
            ],
            "swapped": list(self.swapped),
        }


@dataclass(frozen=True)
class ModePlan:
    """The best plan of a class with its predicted time, or why the class has none."""

    mode: Mode
    plan: Plan | None = None
    time_us: int = 0
    infeasible: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        if self.plan is None:
            return {"infeasible": self.infeasible}
        return {"time_us": self.time_us, "mode": self.mode, **self.plan.to_dict()}


@dataclass(frozen=True)
class Result:
    """The best plan of each class; ``best`` is the class of the best of all, None where there is no plan."""

    best: Mode | None
    by_mode: Mapping[Mode, ModePlan] = field(default_factory=dict)

    def best_plan(self) -> ModePlan | None:
        """The best plan of all."""
        return None if self.best is None else self.by_mode[self.best]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"best": self.best, "by_mode": {mode: self.by_mode[mode].to_dict() for mode in MODES}}


def read_component(reader: Reader, value: Any, path: str, *, named: bool = True) -> Component:
    """Read one component; ``named`` is False where the place in the file says its name."""
    data = reader.mapping(value, path)
    name = reader.field(data, "name", path, reader.text, str) if named else path
    if "," in name:
        reader.problem(f"{path}.name", f"{name!r} holds a comma, which separates names in a placement.")
    time_us: dict[int, dict[int, int]] = reader.field(data, "time_us", path, reader.table, dict)
    work_mib: dict[int, dict[int, int]] = reader.field(data, "work_mib", path, reader.table, dict)
    rows: dict[str, dict[int, int]] = {
        key: reader.field(data, key, path, reader.row, dict) for key in ("resident_mib", "onload_us", "offload_us")
    }
    _check_complete(reader, path, time_us, work_mib, rows, given=data.keys())
    return Component(name, time_us, rows["resident_mib"], work_mib, rows["onload_us"], rows["offload_us"])


def _check_complete(
    reader: Reader,
    path: str,
    time_us: Mapping[int, Mapping[int, int]],
    work_mib: Mapping[int, Mapping[int, int]],
    rows: Mapping[str, Mapping[int, int]],
    given: Collection[str],
) -> None:
    """Whatever has a time must have everything else; a field that is missing as a whole was reported before."""
    for n, times in time_us.items():
        for key, row in rows.items():
            if key in given and n not in row:
                reader.problem(f"{path}.{key}.{n}", f"is missing: time_us has {n} devices.")
        if "work_mib" in given and not times.keys() <= work_mib.get(n, {}).keys():
            chunks = ", ".join(map(str, sorted(times.keys() - work_mib.get(n, {}).keys())))
            reader.problem(f"{path}.work_mib.{n}", f"lacks chunks of {chunks}, which time_us has.")


def _read_case(reader: Reader, data: Mapping[str, Any]) -> Case:
    if data.get("kind", "plan") != "plan":
        reader.problem("kind", f"must be 'plan', not {data['kind']!r}; a loop case is for solve_loop.")
    devices = reader.field(data, "devices", "", reader.integer(1), int)
    items = reader.field(data, "items", "", reader.integer(1), int)
    given = reader.field(data, "chunks", "", lambda value, path: reader.items(value, path, at_least=1), list)
    chunks = tuple(reader.integer(1)(chunk, f"chunks[{i}]") for i, chunk in enumerate(given))
    for i, chunk in enumerate(chunks):
        if items % chunk:
            reader.problem(f"chunks[{i}]", f"{chunk} does not divide the {items} items.")
        if i and chunk <= chunks[i - 1]:
            reader.problem(f"chunks[{i}]", f"chunks must ascend, and {chunk} follows {chunks[i - 1]}.")
    capacity = reader.field(data, "capacity_mib", "", reader.integer(0), int)
    listed = reader.field(data, "components", "", lambda value, path: reader.items(value, path, at_least=1), list)
    components = tuple(read_component(reader, value, f"components[{i}]") for i, value in enumerate(listed))
    names = [component.name for component in components]
    for i, name in enumerate(names):
        if name in names[:i]:
            reader.problem(f"components[{i}].name", f"{name!r} stands there twice.")
    edges = _read_edges(reader, reader.field(data, "edges", "", reader.items, list), names)
    return Case(devices, items, chunks, capacity, components, edges)


def _read_edges(reader: Reader, edges: list[Any], names: list[str]) -> tuple[tuple[int, int], ...]:
    found = set()
    for i, edge in enumerate(edges):
        path = f"edges[{i}]"
        if not isinstance(edge, list | tuple) or len(edge) != 2 or not all(isinstance(name, str) for name in edge):
            reader.problem(path, f"must be a pair of names, not {edge!r}.")
            continue
        unknown = [name for name in edge if name not in names]
        for name in unknown:
            close = nearest(name, names)
            hint = f" Did you mean {close!r}?" if close else ""
            reader.problem(path, f"there is no component {name!r}; there are {one_of(names)}.{hint}")
        if unknown:
            continue
        u, v = names.index(edge[0]), names.index(edge[1])
        if u < v:
            found.add((u, v))
        else:
            reader.problem(path, f"{edge[1]!r} must stand after {edge[0]!r}: components come in the order of the graph."
                           " Two that call each other are declared in 'loops'.")  # fmt: skip
    return tuple(sorted(found))


def _read_phase(reader: Reader, value: Any, path: str) -> Phase:
    data = reader.mapping(value, path)
    chunk = reader.field(data, "chunk", path, reader.integer(None), int)
    stages = reader.field(data, "stages", path, lambda value, inner: reader.items(value, inner, at_least=1), list)
    return Phase(chunk, tuple(_read_stage(reader, stage, f"{path}.stages[{i}]") for i, stage in enumerate(stages)))


def _read_stage(reader: Reader, value: Any, path: str) -> Stage:
    data = reader.mapping(value, path)
    names = reader.field(data, "components", path, lambda value, inner: reader.items(value, inner, at_least=1), list)
    components = tuple(reader.text(name, f"{path}.components[{i}]") for i, name in enumerate(names))
    return Stage(components, reader.field(data, "devices", path, reader.integer(None), int))


def _row_dict(row: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in row.items()}


def _table_dict(table: Mapping[int, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {str(key): _row_dict(row) for key, row in table.items()}
