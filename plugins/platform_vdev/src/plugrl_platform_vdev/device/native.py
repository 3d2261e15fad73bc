"""The C++ part of this process, and how its devices are named in arguments."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch

Device: TypeAlias = int | str | torch.device | None


def native() -> Any:
    """Return the C++ part. Raises RuntimeError before the device was made."""
    try:
        return sys.modules["plugrl_platform_vdev._vdev"]
    except KeyError:
        raise RuntimeError("torch.vdev is not there yet: import plugrl_platform_vdev.device first.") from None


def index_of(device: Device) -> int:
    """Return the logical index that an argument names, that of the current device for None and ``"vdev"``.

    Raises ValueError for a device of another type; that the device exists is checked where it is used.
    """
    if device is None:
        return int(native().current_device())
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "vdev":
        raise ValueError(f"Expected a vdev device, got {device}.")
    return int(native().current_device()) if device.index is None else device.index
