"""From what a worker group is told of its place to the device of each of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plugrl.errors import PlugRLError
from plugrl.platforms.devices import DeviceError
from plugrl.runtime.placement import ComponentPlacement, PlacementError, PlacementStrategy
from plugrl.runtime.placement.errors import Wrong

if TYPE_CHECKING:
    from plugrl.runtime.session import RaySession


def place_group(
    session: RaySession, name: str, devices: Sequence[int], placement: ComponentPlacement | PlacementStrategy | None
) -> tuple[tuple[int, ...], ComponentPlacement | None]:
    """Return the device of each rank, counted through all nodes, and the placement where one was given.

    Where a process cannot own a device, a rank that is placed by node or other hardware shares the first slot there.

    Raises:
        PlugRLError: both or neither were given.
        PlacementError: the strategy does not fit the cluster, or a rank would hold several devices.
        DeviceError: a rank has no device, and the platform has no process without one.
    """
    if placement is None:
        if not devices:
            raise PlugRLError(f"Worker group {name!r} has no device.")
        return tuple(devices), None
    if devices:
        raise PlugRLError(f"Worker group {name!r} has devices and a placement: give one of them.")
    placed = placement.place(session.layout) if isinstance(placement, PlacementStrategy) else placement
    without = [process for process in placed.processes if not process.devices]
    if not without:
        try:
            return placed.one_device_each, placed
        except Wrong as wrong:
            raise PlacementError([(name, wrong.code, str(wrong))]) from None
    platform = session.platform
    if platform.ray_resource_name() or platform.visible_devices_envvar():
        first = without[0]
        raise DeviceError(
            f"Rank {first.rank} of worker group {name!r} is placed by {first.kind} and has no device, but a worker on "
            f"platform {session.platform_name} needs one. Place it on devices."
        )
    layout = session.layout
    first_of = [process.devices[0] if process.devices else layout.first_device(process.node_rank)
                for process in placed.processes]  # fmt: skip
    return tuple(first_of), placed
