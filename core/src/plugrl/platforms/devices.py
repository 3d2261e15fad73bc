"""Which device is which: masks, logical indices, counts and names, as pure functions (rules DV-2 to DV-9)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plugrl.errors import UserError

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase


class DeviceError(UserError):
    """Devices are missing, masked away, miscounted or handed out twice."""


def parse_mask(mask: str | None) -> list[str] | None:
    """Split the value of a visible-devices variable into trimmed ids; None when there is no mask.

    ``-1`` hides itself and what follows, as the drivers that read such variables have it.
    """
    if mask is None:
        return None
    entries = [item.strip() for item in mask.split(",") if item.strip()]
    return entries[: entries.index("-1")] if "-1" in entries else entries


def masked_ids(variable: str, mask: str) -> tuple[str, ...]:
    """Return the physical ids (numbers or UUIDs) that the mask ``variable`` lets a process see, by logical index.

    Raises DeviceError, naming the variable, when the mask hides every device or names one twice.
    """
    ids = parse_mask(mask) or []
    if not ids:
        raise DeviceError(f"{variable} is empty ({mask!r}): no devices are visible. Unset it, or list devices in it.")
    twice = sorted({item for item in ids if ids.count(item) > 1})
    if twice:
        raise DeviceError(f"{variable}={mask} names {', '.join(twice)} twice: list each device once.")
    return tuple(ids)


def logical_index(reported: int | str, mask: str | None, variable: str = "the device mask") -> int:
    """Return the index torch uses for the physical id (number or UUID) that a scheduler reported.

    Without a mask the id itself, else its position in the mask. Raises DeviceError when the mask is empty or lacks it.
    """
    visible = parse_mask(mask)
    wanted = str(reported).strip()
    if visible is None:
        if not wanted.isdigit():
            raise DeviceError(f"Device {wanted!r} is no number and {variable} is not set, so it has no index.")
        return int(wanted)
    if not visible:
        raise DeviceError(f"{variable} is empty ({mask!r}): no devices are visible.")
    if wanted not in visible:
        raise DeviceError(f"Device {wanted!r} was assigned, but {variable} is {mask!r}.")
    return visible.index(wanted)


def device_uuid(resource: str, device_id: int, mask: str | None) -> str:
    """Name a device: ``GPU5`` by its entry in the mask, ``GPU-0`` without a mask. Raises DeviceError out of range."""
    visible = parse_mask(mask)
    if visible is None:
        return f"{resource}-{device_id}"
    if not 0 <= device_id < len(visible):
        raise DeviceError(f"Device index {device_id} is out of range of the device mask {mask!r}.")
    return f"{resource}{visible[device_id]}"


def check_mask_length(platform: PlatformBase, mask: str | None) -> None:
    """Raise DeviceError when the mask names another number of devices than the platform sees."""
    visible = parse_mask(mask)
    count = platform.device_count()
    if visible is not None and len(visible) != count:
        raise DeviceError(
            f"{platform.visible_devices_envvar()}={mask} names {len(visible)} devices, but torch sees {count}."
        )


def check_distinct(assignments: Sequence[tuple[str, int, int]]) -> None:
    """Check ``(node, rank, device)`` rows: ranks on one node hold distinct devices. Raises DeviceError otherwise."""
    holders: dict[tuple[str, int], list[int]] = defaultdict(list)
    for node, rank, device in assignments:
        holders[node, device].append(rank)
    for (node, device), ranks in sorted(holders.items()):
        if len(ranks) > 1:
            raise DeviceError(f"Ranks {', '.join(map(str, sorted(ranks)))} on node {node} all hold device {device}.")


def groups_per_device(platform: PlatformBase, requested: int) -> int:
    """Return how many worker groups share one device: ``requested`` where it can be shared, else 1."""
    return requested if platform.supports_colocated_worker_groups() else 1
