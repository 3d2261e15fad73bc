"""The nodes of a session, and the node and local device that each rank of a group gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

from plugrl.platforms.devices import DeviceError, check_distinct, check_resources

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase


@dataclass(frozen=True, kw_only=True)
class NodeSlots:
    """A node of the cluster and how many devices it has."""

    node_id: str
    ip: str
    devices: int


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where one rank runs: its node, the device's index on that node, its rank among those of the group there."""

    node: NodeSlots
    device_index: int
    local_rank: int


def session_nodes(platform: PlatformBase) -> list[NodeSlots]:
    """Return the living nodes, the head first and then by address; devices are numbered through in this order.

    Ray counts the devices of a platform that has a Ray resource; any other node has as many as this one.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    alive.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeManagerAddress"]))
    resource = platform.ray_resource_name()
    nodes = []
    for node in alive:
        devices = int(node["Resources"].get(resource, 0)) if resource else platform.device_count()
        nodes.append(NodeSlots(node_id=node["NodeID"], ip=node["NodeManagerAddress"], devices=devices))
    return nodes


def assign_seats(devices: Sequence[int], nodes: Sequence[NodeSlots], resource: str, shared: bool) -> list[Seat]:
    """Return the seat of each rank whose device is counted through all nodes.

    Raises:
        DeviceError: a device does not exist, or two ranks would hold one that cannot be shared.
    """
    check_resources(resource, {node.ip: {resource: node.devices} for node in nodes}, max(devices) + 1)
    seats: list[Seat] = []
    on_node: Counter[str] = Counter()
    for device in devices:
        node, index = _locate(device, nodes)
        seats.append(Seat(node=node, device_index=index, local_rank=on_node[node.node_id]))
        on_node[node.node_id] += 1
    if not shared:
        check_distinct([(seat.node.ip, rank, seat.device_index) for rank, seat in enumerate(seats)])
    return seats


def _locate(device: int, nodes: Sequence[NodeSlots]) -> tuple[NodeSlots, int]:
    index = device
    for node in nodes:
        if 0 <= index < node.devices:
            return node, index
        index -= node.devices
    total = sum(node.devices for node in nodes)
    raise DeviceError(f"Device {device} does not exist: the cluster has {total}, numbered from 0.")
