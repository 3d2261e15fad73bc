"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

from pathlib import Path

from plugrl.platforms.base import PlatformBase
from plugrl.platforms.probe import ProbeResult, Unavailable
from plugrl.platforms.probe_facts import torch_build, visible

MASK = "CUDA_VISIBLE_DEVICES"
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def probe() -> ProbeResult:
    """Look at the build of torch, then count the devices in the driver's topology, or ask ``rocm-smi`` without it."""
    release = torch_build("hip")
    if release is None:
        return Unavailable("torch is missing or not built for ROCm")
    count = sum(_is_device(node) for node in TOPOLOGY.glob("*/gpu_id"))
    if not count and not PlatformBase.check_smi_command("rocm-smi"):
        return Unavailable("no device in the driver's topology, and rocm-smi is missing or fails")
    return visible(count or None, MASK, f"torch for ROCm {release}")


def _is_device(node: Path) -> bool:
    """Processors are nodes too: their id is 0."""
    try:
        return node.read_text().strip() not in ("", "0")
    except OSError:
        return False
