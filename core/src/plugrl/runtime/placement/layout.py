"""What a cluster offers: its nodes, the groups they form, and the resources that each group is placed by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from plugrl.errors import nearest, one_of
from plugrl.runtime.placement.errors import Wrong

if TYPE_CHECKING:
    from plugrl.runtime.placement.units import HardwareUnit

CLUSTER = "cluster"
"""The group of all nodes, which a placement without a group means."""
NODE = "node"
"""The group that places by node and gives no device."""
RESERVED = (CLUSTER, NODE)

Kind = Literal["device", "hardware", "node"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as placements see it.

    Attributes:
        devices: number of its accelerators, or of its slots where devices are virtual.
        device_type: what they are, such as the name of the platform.
        name: what messages and tables call the node.
    """

    devices: int
    device_type: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """What a placement counts.

    Attributes:
        kind: an accelerator, a unit of other hardware, or a whole node.
        type: what kind of accelerator or hardware.
        node_rank: the node it belongs to.
        local_device: index of the accelerator on its node; None for the other kinds.
        device: its number through all nodes; None for the other kinds.
        unit: the hardware unit as it was configured.
    """

    kind: Kind
    type: str
    node_rank: int
    local_device: int | None = None
    device: int | None = None
    unit: HardwareUnit | None = field(default=None, hash=False)


@dataclass(frozen=True, kw_only=True)
class NodeEnvironment:
    """Variables and interpreter of a group's workers on one node; an empty interpreter is the driver's."""

    variables: Mapping[str, str] = field(default_factory=dict)
    interpreter: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes under a label, in ascending order, with the resources that placements count from 0.

    ``sound`` is False where a mistake in the configuration leaves nodes or resources unknown.
    """

    label: str
    node_ranks: tuple[int, ...]
    resources: tuple[Resource, ...]
    environments: Mapping[int, NodeEnvironment] = field(default_factory=dict)
    sound: bool = True

    def environment(self, node_rank: int) -> NodeEnvironment:
        """Return what workers of this group get on a node."""
        return self.environments.get(node_rank, NodeEnvironment())


@dataclass(frozen=True)
class Layout:
    """The nodes of a cluster by rank, and the groups that its configuration makes of them."""

    nodes: tuple[Node, ...]
    configured: tuple[NodeGroup, ...] = ()

    @cached_property
    def groups(self) -> dict[str, NodeGroup]:
        """Every group by label: those of the configuration after ``cluster`` and ``node``."""
        ranks = tuple(range(len(self.nodes)))
        everywhere = NodeGroup(label=CLUSTER, node_ranks=ranks, resources=self.resources_of(ranks))
        by_node = NodeGroup(label=NODE, node_ranks=ranks, resources=self._whole(ranks))
        return {group.label: group for group in (everywhere, by_node, *self.configured)}

    @property
    def device_count(self) -> int:
        """Number of devices of all nodes."""
        return sum(node.devices for node in self.nodes)

    def first_device(self, node_rank: int) -> int:
        """Return the number, through all nodes, of a node's first device."""
        return sum(node.devices for node in self.nodes[:node_rank])

    def resources_of(self, node_ranks: Sequence[int]) -> tuple[Resource, ...]:
        """Return the accelerators of some nodes; where they have none at all, the nodes themselves."""
        found = tuple(
            Resource(
                kind="device", type=self.nodes[rank].device_type, node_rank=rank, local_device=index,
                device=self.first_device(rank) + index,
            )
            for rank in node_ranks
            for index in range(self.nodes[rank].devices)
        )  # fmt: skip
        return found or self._whole(node_ranks)

    def select(self, labels: Sequence[str]) -> list[tuple[Resource, str]]:
        """Return the resources of several groups, run on in the order of the labels, each with its group's label.

        Raises:
            Wrong: there is no such group, or a resource would be counted twice.
        """
        selected: dict[Resource, str] = {}
        counted: list[tuple[Resource, str]] = []
        for label in labels:
            for resource in self.group(label).resources:
                if resource in selected:
                    where = f"group {selected[resource]!r}" if selected[resource] != label else "its label twice"
                    raise Wrong("duplicate", f"node group {label!r} is counted already: its resources are in {where}.")
                counted.append((resource, label))
            selected.update(dict.fromkeys(self.group(label).resources, label))
        return counted

    def group(self, label: str) -> NodeGroup:
        """Return a group by its label; upper and lower case differ. Raises Wrong."""
        if label not in self.groups:
            close = nearest(label, self.groups)
            hint = f" Did you mean {close!r}?" if close else ""
            raise Wrong("unknown_group", f"no node group {label!r} (there are {one_of(self.groups)}).{hint}")
        return self.groups[label]

    def add_groups(self, groups: Sequence[NodeGroup]) -> Layout:
        """Return this layout with groups of a configuration."""
        return Layout(self.nodes, (*self.configured, *groups))

    def _whole(self, node_ranks: Sequence[int]) -> tuple[Resource, ...]:
        return tuple(Resource(kind="node", type=NODE, node_rank=rank) for rank in node_ranks)


def single_node(devices: int, device_type: str = "") -> Layout:
    """Return the layout of one node."""
    return Layout((Node(devices=devices, device_type=device_type),))
