"""The one device of a worker: put into its mask before the platform's SDK is loaded, and what became of that.

Ray only counts most accelerators, so the driver hands out the devices of each node itself. A worker sees its own device
alone, at index 0: code that never asks for its device, and code that guesses one from the rank, both get the right one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plugrl.platforms.devices import DeviceError, check_mask_length
from plugrl.runtime.process import environment_of

if TYPE_CHECKING:
    from plugrl.platforms.base import PlatformBase
    from plugrl.runtime.group import WorkerGroup
    from plugrl.runtime.nodes import Seat


@dataclass(frozen=True, kw_only=True)
class AssignedDevice:
    """The device that a worker was given, for tests and reports.

    Attributes:
        index: logical index, which ``torch.device`` takes; 0 where the worker sees nothing but its own device.
        physical_id: number or UUID of the device on its node; None where no mask keeps processes apart.
        variable: the platform's mask; empty where there is none.
        name: the platform's unique name of the device, known once it was taken.
        set_at_start: whether the process was started with this mask, so that nothing can have been loaded before it.
        sdk: the module that adds the device to torch; None where torch itself has it.
        sdk_was_loaded: whether that module was in ``sys.modules`` before the core first needed it: something, a
            manifest or a hook, imports it too early.
    """

    index: int
    physical_id: str | None = None
    variable: str = ""
    name: str = ""
    set_at_start: bool = False
    sdk: str | None = None
    sdk_was_loaded: bool = False


def assigned(platform: PlatformBase, seat: Seat) -> AssignedDevice:
    """Return the device of a rank's seat, as the driver hands it out."""
    if seat.device_id is None:
        return AssignedDevice(index=seat.device_index)
    return AssignedDevice(index=0, physical_id=seat.device_id, variable=platform.visible_devices_envvar())


def mask_of(device: AssignedDevice) -> dict[str, str]:
    """Return the variable, if any, that a worker's process must start with."""
    return {} if device.physical_id is None else {device.variable: device.physical_id}


def check_free(seats: Sequence[Seat], groups: Sequence[WorkerGroup], platform: PlatformBase) -> None:
    """Raise DeviceError when an open group holds a device that only one process may use."""
    held = {(seat.node.node_id, seat.device_index): group.name for group in groups for seat in group.seats}
    for seat in seats:
        holder = held.get((seat.node.node_id, seat.device_index))
        if holder is not None:
            raise DeviceError(
                f"Device {seat.device_index} of node {seat.node.label} belongs to worker group {holder!r}, and a "
                f"process owns a {platform.device_name} device alone. Place the groups on different devices, or close "
                f"{holder!r} first."
            )


def check_mask_is_free(platform: PlatformBase, env: Mapping[str, str]) -> None:
    """Raise DeviceError when variables for workers hold the platform's mask, which is set for each worker alone."""
    variable = platform.visible_devices_envvar()
    if variable and variable in env:
        raise DeviceError(
            f"{variable} cannot be given to workers: each gets its own device in it. To keep devices from all of them, "
            "set it where the Ray node is started."
        )


class DeviceTaker:
    """Takes the device of a worker, in two steps: before anything of the platform is imported, and after."""

    def __init__(self, device: AssignedDevice):
        """Correct the mask where something changed it since the process started, and note what is loaded."""
        self._device = device
        self._loaded = frozenset(sys.modules)
        self._changed: str | None = None
        for name, value in mask_of(device).items():
            before = os.environ.get(name)
            if before != value:
                self._changed = f"{name} was {before!r} instead of {value!r} when the worker was prepared"
                os.environ[name] = value
            started_with = environment_of(os.getpid())
            set_at_start = before == value if started_with is None else started_with.get(name) == value
            self._device = replace(device, set_at_start=set_at_start)

    def take(self, platform: PlatformBase) -> AssignedDevice:
        """Use the device and return it with its name.

        Raises:
            DeviceError: the SDK was loaded under another mask, torch does not see what the mask names, or the platform
                uses another device than it was told.
        """
        variable, index = platform.visible_devices_envvar(), self._device.index
        sdk = getattr(platform, "extension", None)
        early = sdk is not None and sdk in self._loaded
        if self._changed and early:
            raise DeviceError(
                f"{self._changed}, and {sdk} was loaded by then, so it uses other devices. Import {sdk} in functions, "
                "not when a plugin or extension module is imported, and leave the variable to PlugRL."
            )
        check_mask_length(platform, os.environ.get(variable) if variable else None)
        platform.set_device(index)
        if platform.current_device() != index:
            raise DeviceError(
                f"set_device({index}) of platform {platform.vendor_name} left device {platform.current_device()} in "
                "use: every rank would work on it."
            )
        return replace(self._device, name=platform.get_device_uuid(index), sdk=sdk, sdk_was_loaded=early)
