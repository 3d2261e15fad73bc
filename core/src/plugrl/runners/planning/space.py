"""What there is to choose for a configuration: components, devices, chunks, and who needs whose results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError
from plugrl.runners.components import Component, place_components, rl_components
from plugrl.runners.elastic import with_placement
from plugrl.runners.flow_table import stages_of
from plugrl.runners.needs import Needs
from plugrl.runners.preflight import check_engines, check_rows
from plugrl.runners.rl import rl_plan
from plugrl.runners.rl_flow import TURNS, Stages, owners_of
from plugrl.runtime.flow import StageSpec
from plugrl.runtime.placement import Node

_HALVINGS = 3
"""Chunks are the batch and its halves, so many times, as far as it divides."""
_EVERY_COUNT = 4
"""Up to so many devices every number of them is measured, beyond that the powers of two and the most."""


@dataclass(frozen=True)
class PlanSpace:
    """The choices.

    counts: by component, the numbers of devices that it can run on. chunks: permitted portions, ascending.
    own_chunks: by component, those that it can take. owners: by stage, the component whose time it counts with.
    edges: pairs of components, the second needing results of the first.
    """

    devices: int
    items: int
    counts: Mapping[Component, tuple[int, ...]]
    chunks: tuple[int, ...]
    own_chunks: Mapping[Component, tuple[int, ...]]
    stages: Stages
    owners: Mapping[str, str]
    edges: tuple[tuple[str, str], ...]

    @property
    def components(self) -> tuple[Component, ...]:
        """The components in the order in which a step needs them."""
        return tuple(self.counts)

    def stages_of(self, component: str) -> list[StageSpec]:
        """Return the stages that count with a component, in order; those of the driver that follow its own included."""
        return [stage for stage in self.stages if self.owners[stage.name] == component]


def plan_space(config: RunConfig, num_prompts: int, nodes: Sequence[Node], devices: int | None = None) -> PlanSpace:
    """Return what may be chosen on ``devices`` devices; as many as the configuration uses when omitted.

    Raises:
        ConfigError: a plan cannot be made of this configuration, or some component fits no number of devices.
    """
    if config.flow.asynchronous.enable:
        raise ConfigError(
            "flow.asynchronous.enable: sampling ahead is not in the model of a plan; set it to false"
        )
    needed = rl_components(config)
    placed = place_components(config, needed, nodes)
    used = {device for component in placed.components.values() for device in component.one_device_each}
    there = sum(node.devices for node in nodes)
    wanted = devices or len(used)
    if wanted > there:
        raise ConfigError(f"--devices {wanted}: there are {there} devices.")
    ordered: list[Component] = [name for name in TURNS if name in needed]
    counts = {name: _counts(config, name, num_prompts, wanted) for name in ordered}
    needs = Needs(config)
    stages = stages_of(config)(needs)
    chunks = _chunks(config, wanted)
    own_chunks = {name: _own_chunks(name, stages, needs, chunks) for name in ordered}
    owners = owners_of(stages)
    return PlanSpace(
        wanted, config.data.train_batch_size, counts, chunks, own_chunks, stages, owners, edges_of(stages, owners)
    )


def measured_counts(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of devices to measure on."""
    few = [n for n in counts if n <= _EVERY_COUNT or n & (n - 1) == 0]
    return tuple(sorted({*few, counts[-1]}))


def measured_chunks(chunks: Sequence[int]) -> tuple[int, ...]:
    """Return the chunks to measure: the smallest, the largest, and one between."""
    return tuple(sorted({chunks[0], chunks[len(chunks) // 2], chunks[-1]}))


def edges_of(stages: Sequence[StageSpec], owners: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return who needs whose results, in the order of a step; what goes back to an earlier component is left out."""
    pairs = {(owners[name], owners[stage.name]) for stage in stages for name in stage.after}
    return tuple(sorted(pair for pair in pairs if TURNS.index(pair[0]) < TURNS.index(pair[1])))


# --------------------------------------------------------------------- details
def _counts(config: RunConfig, name: Component, num_prompts: int, devices: int) -> tuple[int, ...]:
    found = []
    problem: ConfigError | None = None
    for count in range(1, devices + 1):
        try:
            _check_count(config, name, num_prompts, count)
        except ConfigError as error:
            problem = problem or error
        else:
            found.append(count)
    if not found:
        assert problem is not None
        raise problem
    return tuple(found)


def _check_count(config: RunConfig, name: Component, num_prompts: int, count: int) -> None:
    """Raise ConfigError when a component cannot run on so many devices."""
    check_rows(config, "train", {name: range(count)})
    check_engines(with_placement(config, name, f"0-{count - 1}"), {name: count})
    if name == "actor":
        rl_plan(config, num_prompts, count)


def _chunks(config: RunConfig, devices: int) -> tuple[int, ...]:
    """Return the batch and its halves that give every rank a row, and the mini-batch of the actor."""
    batch, samples = config.data.train_batch_size, config.rollout.n
    halves = [batch >> power for power in range(_HALVINGS + 1) if batch % (1 << power) == 0]
    found = {batch, *(chunk for chunk in (*halves, config.actor.ppo_mini_batch_size) if chunk * samples >= devices)}
    return tuple(sorted(found))


def _own_chunks(name: str, stages: Sequence[StageSpec], needs: Needs, chunks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the chunks that a component takes: one that learns waits for the batch, or takes whole mini-batches."""
    learns = any(stage.component == name and stage.size is not None for stage in stages)
    if not learns:
        return chunks
    mini_batch = needs.config.actor.ppo_mini_batch_size
    return tuple(m for m in chunks if m == chunks[-1] or (not needs.why_whole and m % mini_batch == 0))
