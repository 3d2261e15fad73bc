"""The one form that placements have, whoever made them: component, processes, resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from plugrl.runtime.placement.errors import Wrong
from plugrl.runtime.placement.grammar import Processes, format_placement
from plugrl.runtime.placement.layout import CLUSTER, Kind, Layout, NodeEnvironment, Resource

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ProcessPlacement:
    """Where one process of a component runs.

    Attributes:
        rank: its rank in the component.
        node_rank: its node in the cluster; ``placement_node_rank`` counts the component's own nodes.
        local_rank, local_world_size: among the component's processes on that node.
        node_group: label of the group that its resources belong to.
        kind, type: what its resources are.
        ranks: its resources as the placement counts them, from 0 within the groups that were chosen.
        resources: the same, ascending.
        visible: indices, on its node, of the devices it may see: its own, or all of the node's without isolation.
    """

    rank: int
    node_rank: int
    placement_node_rank: int
    local_rank: int
    local_world_size: int
    node_group: str
    kind: Kind
    type: str
    ranks: tuple[int, ...]
    resources: tuple[Resource, ...]
    visible: tuple[int, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """Its devices by their number through all nodes; empty where it is placed by node or other hardware."""
        return tuple(item.device for item in self.resources if item.device is not None)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Its devices by their index on the node."""
        return tuple(item.local_device for item in self.resources if item.local_device is not None)

    @property
    def isolated(self) -> bool:
        """Whether it sees its own devices alone."""
        return self.visible == self.local_devices


@dataclass(frozen=True, kw_only=True)
class ComponentPlacement:
    """The processes of a component. ``memory_mib`` is what each takes of its devices, where a plan says so."""

    groups: tuple[str, ...]
    processes: tuple[ProcessPlacement, ...]
    memory_mib: int | None = None

    @property
    def devices(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each process, by their number through all nodes."""
        return tuple(process.devices for process in self.processes)

    @property
    def one_device_each(self) -> tuple[int, ...]:
        """The device of each process, for workers that hold one. Raises Wrong where one has none or several."""
        for rank, devices in enumerate(self.devices):
            if not devices:
                process = self.processes[rank]
                text = f"rank {rank} would hold {process.kind} {process.ranks[0]} of group {process.node_group!r}"
                raise Wrong("no_device", f"{text} and no device: a worker has one device.")
            if len(devices) > 1:
                held = ", ".join(map(str, devices))
                raise Wrong("several_devices", f"rank {rank} would hold devices {held}: a worker has one device.")
        return tuple(devices[0] for devices in self.devices)

    def to_value(self) -> object:
        """Return the value that stands for this placement in a configuration."""
        value = format_placement([process.ranks for process in self.processes])
        if self.groups == (CLUSTER,):
            return value
        return {"node_group": self.groups[0] if len(self.groups) == 1 else list(self.groups), "placement": value}


@dataclass(frozen=True)
class Placement:
    """The placement of every component on one cluster, which grammar, strategies and planner all produce."""

    layout: Layout
    components: Mapping[str, ComponentPlacement]

    def to_config(self) -> dict[str, object]:
        """Return ``cluster.component_placement``: read again on the same cluster, it is this placement."""
        return {name: component.to_value() for name, component in self.components.items()}

    def environment(self, process: ProcessPlacement) -> NodeEnvironment:
        """Return what the configuration says of the environment of a process."""
        return self.layout.group(process.node_group).environment(process.node_rank)


def make_component(
    layout: Layout,
    groups: Sequence[str],
    processes: Processes,
    *,
    isolate: bool = True,
    memory_mib: int | None = None,
) -> ComponentPlacement:
    """Return the placement of processes whose resources are counted through ``groups``.

    Raises:
        Wrong: an unknown group, a process with resources on two nodes (``cross_node``) or of two kinds
            (``mixed_hardware``), or a resource that does not exist.
    """
    selected = layout.select(groups)
    placed = [_choose(selected, rank, ranks) for rank, ranks in enumerate(processes)]
    nodes = sorted({resources[0][0].node_rank for resources in placed})
    sizes = Counter(resources[0][0].node_rank for resources in placed)
    before: Counter[int] = Counter()
    done = []
    for rank, (ranks, chosen) in enumerate(zip(processes, placed, strict=True)):
        (first, label), node = chosen[0], chosen[0][0].node_rank
        own = tuple(resource for resource, _ in chosen)
        held = tuple(item.local_device for item in own if item.local_device is not None)
        done.append(
            ProcessPlacement(
                rank=rank, node_rank=node, placement_node_rank=nodes.index(node), local_rank=before[node],
                local_world_size=sizes[node], node_group=label, kind=first.kind, type=first.type, ranks=tuple(ranks),
                resources=own, visible=held if isolate else tuple(range(layout.nodes[node].devices)),
            )
        )  # fmt: skip
        before[node] += 1
    return ComponentPlacement(groups=tuple(groups), processes=tuple(done), memory_mib=memory_mib)


def _choose(
    selected: Sequence[tuple[Resource, str]], rank: int, ranks: Sequence[int]
) -> list[tuple[Resource, str]]:
    if not ranks:
        raise Wrong("empty", f"rank {rank} has no resource.")
    missing = [item for item in ranks if not 0 <= item < len(selected)]
    if missing:
        raise Wrong("out_of_range", f"rank {rank} would hold resource {missing[0]}: there are {len(selected)}.")
    chosen = [selected[item] for item in ranks]
    nodes = list(_distinct(resource.node_rank for resource, _ in chosen))
    if len(nodes) > 1:
        held, where = format_placement([[item] for item in ranks]), ", ".join(map(str, nodes))
        raise Wrong("cross_node", f"rank {rank} would hold resources {held} on nodes {where}: a process has one node.")
    kinds = list(_distinct((resource.kind, resource.type) for resource, _ in chosen))
    if len(kinds) > 1:
        what = " and ".join(kind if kind == type_ or not type_ else f"{kind} {type_}" for kind, type_ in kinds)
        raise Wrong("mixed_hardware", f"rank {rank} would hold {what}: the resources of a process are of one kind.")
    return chosen


def _distinct(values: Iterable[T]) -> Iterable[T]:
    return dict.fromkeys(values)

