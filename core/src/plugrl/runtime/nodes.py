"""The nodes of a session, the devices each of them offers, and the node and device that each rank of a group gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from plugrl.platforms.devices import DeviceError, check_distinct, masked_ids
from plugrl.platforms.visible import visible_ids
from plugrl.runtime.node_view import NodeView, view_nodes

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase


@dataclass(frozen=True, kw_only=True)
class NodeSlots:
    """A node of the cluster and its devices.

    device_ids: the physical ids (numbers or UUIDs) of its devices, by their index on the node; None where no mask keeps
    processes apart, so that each of them sees all devices. name: what messages call the node.
    """

    node_id: str
    ip: str
    devices: int
    device_ids: tuple[str, ...] | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """The node in messages: its name, with the address where they differ."""
        return label_of(self.ip, self.name)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where one rank runs: its node, the device's index on that node, its rank among those of the group there."""

    node: NodeSlots
    device_index: int
    local_rank: int

    @property
    def device_id(self) -> str | None:
        """The physical id of the device, the only entry of the worker's mask; None where there is no mask."""
        return None if self.node.device_ids is None else self.node.device_ids[self.device_index]


def label_of(ip: str, name: str) -> str:
    """Return what messages call a node: its name, with the address where they differ."""
    return ip if name in ("", ip) else f"{name} ({ip})"


def living_nodes() -> list[dict[str, Any]]:
    """Return what Ray knows of the nodes that are alive, in the order in which devices are numbered."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return sorted(alive, key=node_order)


def node_order(node: Mapping[str, Any]) -> tuple[bool, str, str, str]:
    """Return the sort key of a node as Ray describes it: the head, then by type of accelerator, address and name."""
    resources = node["Resources"]
    kinds = ",".join(sorted(name for name in resources if name.startswith("accelerator_type:")))
    return "node:__internal_head__" not in resources, kinds, node["NodeManagerAddress"], node.get("NodeName", "")


def local_nodes(platform: PlatformBase, platform_name: str) -> list[NodeSlots]:
    """Return the one node of a Ray that this process started: its devices are those that this process may use.

    Raises DeviceError when this process's mask is empty.
    """
    ids = visible_ids(platform, platform_name)
    (node,) = living_nodes()
    return [_slots(node, len(ids), ids if platform.visible_devices_envvar() else None)]


def cluster_nodes(
    platform: PlatformBase, platform_name: str, timeout_s: float, alive: Sequence[Mapping[str, Any]]
) -> list[NodeSlots]:
    """Return the given living nodes of a cluster that was joined; devices are numbered through in this order.

    Ray counts the devices of a platform that has a Ray resource; any other node has as many as this one. Which of a
    node's devices these are follows from the mask that the node was started with, which each node is asked for.

    Raises:
        DeviceError: a node's mask is empty or names fewer devices than Ray was told, or the node cannot be asked.
    """
    resource = platform.ray_resource_name()
    offered = {
        node["NodeID"]: int(node["Resources"].get(resource, 0)) if resource else platform.device_count()
        for node in alive
    }
    if not platform.visible_devices_envvar():
        return [_slots(node, offered[node["NodeID"]], None) for node in alive]
    views = view_nodes([node_id for node_id, count in offered.items() if count], platform, platform_name, timeout_s)
    found = []
    for node in alive:
        count = offered[node["NodeID"]]
        slots = _slots(node, count, tuple(map(str, range(count))))
        if count:
            slots = _slots(node, count, device_ids(platform, slots, views[node["NodeID"]]))
        found.append(slots)
    return found


def device_ids(platform: PlatformBase, node: NodeSlots, view: NodeView) -> tuple[str, ...]:
    """Return the physical ids of the devices that Ray was told ``node`` has: the first ones of the node's own mask.

    Raises:
        DeviceError: the node cannot be asked, its mask is empty, or Ray was told of more devices than there are.
    """
    variable, resource = platform.visible_devices_envvar(), platform.ray_resource_name() or platform.device_name
    if view.error:
        raise DeviceError(f"Node {node.label}: {view.error}.")
    mask = view.variables.get(variable)
    try:
        ids = masked_ids(variable, mask) if mask is not None else tuple(map(str, range(view.count or node.devices)))
    except DeviceError as error:
        raise DeviceError(f"Node {node.label} was started with {node.devices} {resource}, but there {error}") from error
    if len(ids) < node.devices:
        seen = f"{variable}={mask} names {len(ids)}" if mask is not None else f"the platform finds {len(ids)}"
        raise DeviceError(
            f"Node {node.label} was started with {node.devices} {resource}, but there {seen}. Start it again with as "
            f"many as it has, or with another {variable}."
        )
    return ids[: node.devices]


def _slots(node: Mapping[str, Any], devices: int, ids: tuple[str, ...] | None) -> NodeSlots:
    ip, name = node["NodeManagerAddress"], node.get("NodeName", "")
    return NodeSlots(node_id=node["NodeID"], ip=ip, devices=devices, device_ids=ids, name=name)


def assign_seats(devices: Sequence[int], nodes: Sequence[NodeSlots], shared: bool) -> list[Seat]:
    """Return the seat of each rank whose device is counted through all nodes.

    Raises:
        DeviceError: a device does not exist, or two ranks would hold one that cannot be shared.
    """
    seats: list[Seat] = []
    on_node: Counter[str] = Counter()
    for device in devices:
        node, index = _locate(device, nodes)
        seats.append(Seat(node=node, device_index=index, local_rank=on_node[node.node_id]))
        on_node[node.node_id] += 1
    if not shared:
        check_distinct([(seat.node.label, rank, seat.device_index) for rank, seat in enumerate(seats)])
    return seats


def _locate(device: int, nodes: Sequence[NodeSlots]) -> tuple[NodeSlots, int]:
    index = device
    for node in nodes:
        if 0 <= index < node.devices:
            return node, index
        index -= node.devices
    total = sum(node.devices for node in nodes)
    raise DeviceError(f"Device {device} does not exist: the cluster has {total}, numbered from 0.")
