"""From declared stages, a placement and the section ``flow`` to the flow that runs: phases, portions, turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plugrl.config.schema.flow import FlowConfig
from plugrl.errors import ConfigError, PlugRLError, nearest, one_of
from plugrl.runtime.flow.stages import DRIVER, Item, Stage, StageSpec

PHASE_STRIDE = 3
"""A phase is three in the schedule: components come to their devices, work, and leave again."""


@dataclass(frozen=True)
class Phase:
    """Components that work side by side: ``stages`` on devices of their own, those within one taking turns."""

    chunk: int
    stages: tuple[tuple[str, ...], ...]

    @property
    def components(self) -> tuple[str, ...]:
        """All components of the phase."""
        return tuple(name for stage in self.stages for name in stage)


@dataclass(frozen=True)
class Arrangement:
    """The resolved flow of a step of ``total`` items: what runs, and why it is so."""

    stages: tuple[Stage, ...]
    phases: tuple[Phase, ...]
    swapped: tuple[str, ...]
    total: int
    total_key: str
    max_ahead: int | None = None

    @property
    def work(self) -> tuple[Stage, ...]:
        """The stages that do something else than moving a component."""
        return tuple(stage for stage in self.stages if not stage.transfer)

    def phase_of(self, stage: Stage) -> int:
        """Return the number of a stage's phase, from 0."""
        return stage.phase // PHASE_STRIDE


def arrange(
    specs: Sequence[StageSpec],
    devices: Mapping[str, Sequence[int]],
    flow: FlowConfig,
    total: int,
    *,
    total_key: str = "the number of items",
) -> Arrangement:
    """Resolve a flow.

    Args:
        specs: stages in an order in which each stands after what it needs.
        devices: the devices of each component, components in the order in which they are to take turns.
        flow: the section ``flow`` of the configuration.
        total: items of a step; ``total_key`` is what messages call that number.

    Raises:
        ConfigError: every mistake of the section, a line each, starting with the key.
    """
    used = {spec.component for spec in specs if spec.component != DRIVER}
    if missing := used - devices.keys():
        raise PlugRLError(f"Stages run on components without devices: {one_of(missing)}.")
    placed = {name: tuple(dict.fromkeys(devices[name])) for name in devices if name in used}
    problems = [*_chunk_problems(flow, total, total_key), *_name_problems(flow, placed, set(devices))]
    phases = _given(flow, total, placed) if flow.phases else _derived(placed, flow.chunk or total)
    problems += _sharing_problems(phases, placed)
    if not problems:
        problems += _order_problems(specs, phases)
    if problems:
        raise ConfigError("\n".join(problems))
    stages = _stages(specs, phases, placed, total)
    swapped = tuple(name for name in placed if name in flow.swapped)
    moves = _transfers(stages, swapped)
    return Arrangement((*moves, *stages), tuple(phases), swapped, total, total_key, flow.max_ahead)


# ----------------------------------------------------------------- phases
def _derived(placed: Mapping[str, tuple[int, ...]], chunk: int) -> list[Phase]:
    """Put each component beside those before it, or into a new phase when it needs a device of theirs."""
    phases: list[list[str]] = []
    for name, devices in placed.items():
        if not phases or any(set(devices) & set(placed[other]) for other in phases[-1]):
            phases.append([])
        phases[-1].append(name)
    return [Phase(chunk, tuple((name,) for name in names)) for names in phases]


def _given(flow: FlowConfig, total: int, placed: Mapping[str, tuple[int, ...]]) -> list[Phase]:
    """Return the phases of the configuration, without components that this flow does not have."""
    found = []
    for phase in flow.phases:
        stages = tuple(tuple(name for name in stage if name in placed) for stage in phase.stages)
        stages = tuple(stage for stage in stages if stage)
        if stages:
            found.append(Phase(phase.chunk or flow.chunk or total, stages))
    return found


def _chunk_problems(flow: FlowConfig, total: int, key: str) -> Iterator[str]:
    chunks = [("flow.chunk", flow.chunk), *((f"flow.phases.{i}.chunk", p.chunk) for i, p in enumerate(flow.phases))]
    for path, chunk in chunks:
        if chunk is None or total % chunk == 0:
            continue
        fitting = [size for size in range(1, total + 1) if total % size == 0]
        near = [*[size for size in fitting if size < chunk][-1:], *[size for size in fitting if size > chunk][:1]]
        yield f"{path}: {chunk} does not divide {key}, which is {total}; take {' or '.join(map(str, near))}"


def _name_problems(flow: FlowConfig, placed: Mapping[str, tuple[int, ...]], known: set[str]) -> Iterator[str]:
    lists = [(f"flow.phases.{i}.stages", [n for s in p.stages for n in s]) for i, p in enumerate(flow.phases)]
    seen: set[str] = set()
    for path, names in lists:
        for name in names:
            if name not in known:
                yield f"{path}: {_unknown(name, known)}"
            elif name in seen:
                yield f"{path}: {name} stands in two places of flow.phases"
            seen.add(name)
    if flow.phases:
        for name in placed.keys() - seen:
            yield f"flow.phases: {name} has no place in any phase"
    for path, names in [("flow.swapped", [*flow.swapped]), ("flow.memory_mib", [*flow.memory_mib])]:
        for name in names:
            if name not in known:
                yield f"{path}: {_unknown(name, known)}"


def _unknown(name: str, known: set[str]) -> str:
    close = nearest(name, known)
    hint = f"; did you mean {close}?" if close else ""
    return f"no component {name!r} in this run (it has {one_of(known)}){hint}"


def _sharing_problems(phases: Sequence[Phase], placed: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for number, phase in enumerate(phases):
        for index, stage in enumerate(phase.stages):
            for other in phase.stages[:index]:
                for one in other:
                    for name in stage:
                        shared = sorted(set(placed[one]) & set(placed[name]))
                        if shared:
                            yield (
                                f"flow.phases.{number}: {one} and {name} share device {shared[0]} but stand in two "
                                f"stages of one phase; write them as one stage [{one}, {name}], where they take "
                                "turns, or give each a phase"
                            )


def _order_problems(specs: Sequence[StageSpec], phases: Sequence[Phase]) -> Iterator[str]:
    """A component whose every stage needs results of later phases stands too early."""
    own = {name: number for number, phase in enumerate(phases) for name in phase.components}
    lifted = _lifted(specs, own)
    for name, number in own.items():
        first = min((lifted[spec.name] for spec in specs if spec.component == name), default=number)
        if first > number:
            spec = next(spec for spec in specs if spec.component == name)
            yield (
                f"flow.phases.{number}: {name} needs results of phase {first} (for {spec.name}, after "
                f"{', '.join(spec.after)}); put it into that phase or a later one"
            )


def _lifted(specs: Sequence[StageSpec], own: Mapping[str, int]) -> dict[str, int]:
    """Return the phase of each stage: that of its component, but not before its inputs."""
    found: dict[str, int] = {}
    for spec in specs:
        found[spec.name] = max([own.get(spec.component, 0), *(found[name] for name in spec.after)])
    return found


# ----------------------------------------------------------------- stages
def _stages(
    specs: Sequence[StageSpec], phases: Sequence[Phase], placed: Mapping[str, tuple[int, ...]], total: int
) -> list[Stage]:
    own = {name: number for number, phase in enumerate(phases) for name in phase.components}
    lifted = _lifted(specs, own)
    stages = []
    for spec in specs:
        number = lifted[spec.name]
        stages.append(
            Stage(
                name=spec.name, component=spec.component, run=spec.run, after=spec.after,
                devices=placed.get(spec.component, ()), phase=number * PHASE_STRIDE + 1,
                size=spec.size or phases[number].chunk, why=spec.why, turn=spec.turn,
            )
        )  # fmt: skip
    return stages


def _transfers(stages: Sequence[Stage], swapped: Sequence[str]) -> list[Stage]:
    moves = []
    for name in swapped:
        for number in sorted({stage.phase for stage in stages if stage.component == name}):
            place = next(stage for stage in stages if stage.component == name)
            common = replace(place, run=_nothing, after=(), why="", size=2**62)
            moves.append(replace(common, name=f"load {name} {number}", phase=number - 1, transfer="load"))
            moves.append(replace(common, name=f"unload {name} {number}", phase=number + 1, transfer="unload"))
    return moves


def _nothing(item: Item) -> None:
    """A transfer has no work of its own."""
