"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

from plugrl.platforms.base import PlatformBase
from plugrl.platforms.probe import ProbeResult, Unavailable
from plugrl.platforms.probe_facts import device_files, visible

MASK = "CUDA_VISIBLE_DEVICES"


def probe() -> ProbeResult:
    """Ask ``mx-smi``, the only thing that tells these devices from those that they imitate; the driver counts none."""
    if not PlatformBase.check_smi_command("mx-smi"):
        return Unavailable("mx-smi is missing or fails")
    detail = "mx-smi answers" if device_files("/dev/mxcd") else "mx-smi answers, but there is no /dev/mxcd"
    return visible(None, MASK, detail)
