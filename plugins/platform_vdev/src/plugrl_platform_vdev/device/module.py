"""The module ``torch.vdev``: what torch, its libraries and PlugRL ask of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from plugrl_platform_vdev.device import memory, random_numbers
from plugrl_platform_vdev.device.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from plugrl_platform_vdev.device.native import Device, index_of, native
from plugrl_platform_vdev.device.random_numbers import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from plugrl_platform_vdev.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from plugrl_platform_vdev.settings import visible_devices

__all__ = [
    "DeviceProperties", "Event", "Stream", "current_device", "current_stream", "default_generators", "default_stream",
    "device", "device_count", "device_of", "empty_cache", "get_amp_supported_dtype", "get_device_capability",
    "get_device_name", "get_device_properties", "get_rng_state", "get_rng_state_all", "init", "initial_seed",
    "is_available", "is_bf16_supported", "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory", "memory_allocated", "memory_reserved", "memory_stats",
    "physical_device", "random_numbers", "reset_accumulated_memory_stats", "reset_peak_memory_stats", "seed",
    "seed_all", "set_device", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize",
]  # fmt: skip


_initialized = True
"""Asked by activation checkpointing: only then does it keep the state of the device's generator."""

_PHYSICAL_IDS = visible_devices()
"""By logical index, as the mask was when the device was made: a later one has no effect, as on real devices."""


@dataclass(frozen=True)
class DeviceProperties:
    """What is known of a device. ``total_memory`` is in bytes; ``physical_id`` is its number without a mask."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    physical_id: int
    uuid: str


# --------------------------------------------------------------------- devices
def init() -> None:
    """Do nothing: importing the package made the device."""


def is_initialized() -> bool:
    """Whether this process used a device, by choosing it or by allocating on it."""
    return any(native().is_used(index) for index in range(device_count()))


def is_available() -> bool:
    """Whether a device is visible to this process."""
    return device_count() > 0


def _is_in_bad_fork() -> bool:
    """False: a device without hardware survives a fork."""
    return False


def device_count() -> int:
    """Number of devices that the mask leaves."""
    return int(native().device_count())


def current_device() -> int:
    """Logical index of the device in use by this thread."""
    return int(native().current_device())


def set_device(device: Device) -> None:
    """Use a device from now on, in this thread. Raises RuntimeError when there is none of this index."""
    native().set_device(index_of(device))


class device:  # noqa: N801 - the name that torch's libraries use
    """A block on another device; an index below zero changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)
        self._before = -1

    def __enter__(self) -> None:
        self._before = current_device()
        if self.idx >= 0:
            set_device(self.idx)

    def __exit__(self, *error: Any) -> None:
        set_device(self._before)


class device_of(device):  # noqa: N801 - the name that torch's libraries use
    """A block on the device of a tensor; a tensor elsewhere changes nothing."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device.index if tensor.device.type == "vdev" else -1)


def synchronize(device: Device = None) -> None:
    """Return at once for an existing device: its work is done when the call that asks for it returns."""
    native().is_used(index_of(device))


def physical_device(device: Device = None) -> int:
    """Return the number that the device has without a mask."""
    return _PHYSICAL_IDS[index_of(device)]


# --------------------------------------------------------------------- properties
def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return what is known of a device. Raises RuntimeError when there is none of this index."""
    index = index_of(device)
    native().is_used(index)
    physical = physical_device(index)
    total = mem_get_info(index)[1]
    return DeviceProperties("PlugRL vdev", 1, 0, total, 1, physical, f"VDEV-{physical}")


def get_device_name(device: Device = None) -> str:
    """Return the name of the product."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return (major, minor), the same for all devices."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: the host computes bf16, if slowly."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that autocast may compute in."""
    return [torch.bfloat16, torch.float16]




def _lazy_init() -> None:
    """Do nothing; torch calls it before the first use."""


def _lazy_call(callback: Any) -> None:
    """Call at once what has to wait for the first use on other devices."""
    callback()
