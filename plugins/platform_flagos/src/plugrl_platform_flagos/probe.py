"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

from plugrl.platforms.probe import ProbeResult, Unavailable
from plugrl.platforms.probe_facts import device_files, is_installed, torch_build, visible

MASK = "CUDA_VISIBLE_DEVICES"


def probe() -> ProbeResult:
    """Look for the library of operators or of collectives, and for devices by the files of NVIDIA's driver."""
    if not (is_installed("flag_gems") or is_installed("flagcx")):
        return Unavailable("neither flag_gems nor flagcx is installed")
    if torch_build("cuda") is None:
        return Unavailable("torch is missing or built without CUDA")
    # On the chips of others there are no such files: then it is up to whoever names this platform.
    count = device_files("/proc/driver/nvidia/gpus/*") or device_files("/dev/nvidia[0-9]*")
    return visible(count or None, MASK, "FlagOS")
