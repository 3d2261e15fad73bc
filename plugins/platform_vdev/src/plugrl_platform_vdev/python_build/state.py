"""Which devices there are and which is in use, for the Python build."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from plugrl_platform_vdev import faults
from plugrl_platform_vdev.settings import visible_devices


@dataclass
class _State(threading.local):
    current: int = 0
    counts: dict[int, int] = field(default_factory=dict)


_state = _State()


def device_count() -> int:
    """Number of devices that this process may use."""
    return len(visible_devices())


def current_device() -> int:
    """Logical index of the device that this thread uses."""
    return _state.current


def set_current_device(index: int) -> int:
    """Use another device; returns the one before. Raises RuntimeError when there is none at ``index``."""
    before, _state.current = _state.current, check_index(index)
    return before


def check_index(index: int) -> int:
    """Return ``index``. Raises RuntimeError when there is no such device."""
    if not 0 <= index < device_count() and not faults.is_mutant("index_7_accepted"):
        raise RuntimeError(f"vdev:{index} does not exist: {device_count()} device(s) are visible")
    return index
