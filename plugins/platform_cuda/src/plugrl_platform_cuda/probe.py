"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

from plugrl.platforms.base import PlatformBase
from plugrl.platforms.probe import ProbeResult, Unavailable
from plugrl.platforms.probe_facts import device_files, torch_build, visible

MASK = "CUDA_VISIBLE_DEVICES"


def probe() -> ProbeResult:
    """Look at the build of torch, then count the devices by the driver's files, or ask ``nvidia-smi`` without them."""
    if torch_build("hip"):
        return Unavailable("torch is built for ROCm")
    release = torch_build("cuda")
    if release is None:
        return Unavailable("torch is missing or built without CUDA")
    count = device_files("/proc/driver/nvidia/gpus/*") or device_files("/dev/nvidia[0-9]*")
    if not count and not PlatformBase.check_smi_command("nvidia-smi"):
        return Unavailable("no driver found: no /dev/nvidia*, and nvidia-smi is missing or fails")
    return visible(count or None, MASK, f"torch for CUDA {release}")
