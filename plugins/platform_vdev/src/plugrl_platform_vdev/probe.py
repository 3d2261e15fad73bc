"""Whether the device can be used here; asked without torch, and without a build."""

from __future__ import annotations

import time

from plugrl.platforms.probe import Available, ProbeResult, Unavailable
from plugrl_platform_vdev.faults import active
from plugrl_platform_vdev.settings import MASK_VARIABLE, visible_devices

_HANG_S = 600.0


def probe() -> ProbeResult:
    """Answer by the variables alone: where there is no compiler, the build in Python takes its place."""
    if active("probe_hang"):
        time.sleep(_HANG_S)
    devices = visible_devices()
    if not devices:
        return Unavailable(f"no device visible ({MASK_VARIABLE} is empty)")
    return Available(count=len(devices), detail="a device for tests, in host memory")
