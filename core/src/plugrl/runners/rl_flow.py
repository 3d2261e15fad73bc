"""The flow of a step of reinforcement learning: the stages that a loop names, placed by the configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError
from plugrl.runners.needs import Needs
from plugrl.runtime.flow import DRIVER, Arrangement, Stage, StageSpec, arrange
from plugrl.runtime.flow.explain import COLUMNS, FlowTable

TURNS = ("rollout", "ref", "critic", "actor")
"""Components in the order in which a step needs them."""

_TOTAL_KEY = "data.train_batch_size"


def _check_apart(devices: Mapping[str, Sequence[int]]) -> None:
    """Sampling ahead needs devices that nothing else works on. Raises ConfigError."""
    for name, placed in devices.items():
        shared = sorted(set(placed) & set(devices["rollout"]))
        if name != "rollout" and shared:
            raise ConfigError(
                f"flow.asynchronous.enable: rollout samples while {name} works, but both are placed on device "
                f"{shared[0]}; give rollout devices of its own (cluster.component_placement)"
            )


class Stages(list[StageSpec]):
    """The stages of a step in the order in which they would run one after another."""

    def add(
        self,
        name: str,
        component: str,
        verb: Callable[..., Any],
        after: str | Sequence[str] = (),
        size: int | None = None,
        why: str = "",
    ) -> None:
        """Add a stage, see :class:`plugrl.runtime.flow.StageSpec`; ``verb`` is a method of the run."""
        inputs = (after,) if isinstance(after, str) else tuple(after)
        self.append(StageSpec(name=name, component=component, run=verb, after=inputs, size=size, why=why))

    @property
    def names(self) -> list[str]:
        """The stages so far."""
        return [stage.name for stage in self]


Declare = Callable[[Needs], Stages]
"""A loop's list of stages."""


def owners_of(stages: Iterable[StageSpec | Stage]) -> dict[str, str]:
    """Return the component that each stage counts with: for the driver's, the latest one whose results it needs."""
    owners: dict[str, str] = {}
    for stage in stages:
        if stage.component != DRIVER:
            owners[stage.name] = stage.component
            continue
        owners[stage.name] = max((owners[name] for name in stage.after), key=TURNS.index)
    return owners


def arrange_rl(
    config: RunConfig, stages: Sequence[StageSpec], devices: Mapping[str, Sequence[int]]
) -> Arrangement:
    """Put the stages of a step in their places; samples that are drawn ahead are no stage of it.

    Raises ConfigError for every mistake of ``flow``.
    """
    placed = {name: devices[name] for name in TURNS if name in devices}
    if config.flow.asynchronous.enable:
        _check_apart(placed)
        stages = _without_stage(stages, "gen")
    arrangement = arrange(stages, placed, config.flow, config.data.train_batch_size, total_key=_TOTAL_KEY)
    problems = [
        f"flow.chunk: {stage.size} prompts of {config.rollout.n} responses are fewer than the {len(devices[name])} "
        f"ranks of {name}, which share them"
        for name in ("ref", "critic", "actor")
        for stage in arrangement.work
        if stage.component == name and stage.size * config.rollout.n < len(devices[name])
    ]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return arrangement


def _without_stage(stages: Sequence[StageSpec], name: str) -> list[StageSpec]:
    """Return the stages without one, and without the need of it."""
    return [
        replace(stage, after=tuple(other for other in stage.after if other != name))
        for stage in stages
        if stage.name != name
    ]


def bound(stages: Sequence[StageSpec], bind: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[StageSpec]:
    """Return the stages with their verbs bound to a run."""
    return [replace(stage, run=bind(stage.run)) for stage in stages]


def print_flow(found: FlowTable) -> None:
    """Print a resolved flow as a run starts."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Flow of a step", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for row in found.rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for note in found.notes:
        console.print(note)
