"""How many devices a process may use, asked without waking them: a driver must not occupy what its workers need."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plugrl.platforms.devices import masked_ids
from plugrl.platforms.probing import probe
from plugrl.platforms.registry import PLATFORMS
from plugrl.platforms.selection import current_selection

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase


def visible_ids(platform: PlatformBase, name: str) -> tuple[str, ...]:
    """Return the physical ids of this process's devices, by logical index.

    They come from the platform's mask; without one they are numbered through, and the probe of the platform registered
    as ``name`` counts them. Only a probe that cannot count leaves the question to ``device_count()``, which may
    initialise a device. Raises DeviceError when the mask is empty or names a device twice.
    """
    variable = platform.visible_devices_envvar()
    mask = os.environ.get(variable) if variable else None
    if mask is not None:
        return masked_ids(variable, mask)
    counted = probe(name).count if name in PLATFORMS.keys() else 0
    return tuple(map(str, range(counted or platform.device_count())))


def visible_count(platform: PlatformBase) -> int:
    """Return how many devices this process may use, for the platform in use; errors as of :func:`visible_ids`."""
    selection = current_selection()
    return len(visible_ids(platform, selection.platform_name if selection else ""))
