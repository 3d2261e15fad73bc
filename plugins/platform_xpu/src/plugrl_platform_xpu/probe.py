"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

from pathlib import Path

from plugrl.platforms.probe import ProbeResult, Unavailable
from plugrl.platforms.probe_facts import is_installed, torch_build, visible

MASK = "ZE_AFFINITY_MASK"
RENDER_NODES = Path("/sys/class/drm")
INTEL = "0x8086"


def probe() -> ProbeResult:
    """Look at the build of torch or for Intel's extension, then count Intel's render nodes."""
    release = torch_build("xpu")
    if release is None and not is_installed("intel_extension_for_pytorch"):
        return Unavailable("torch is built without XPU, and intel_extension_for_pytorch is not installed")
    count = sum(_is_intel(node) for node in RENDER_NODES.glob("renderD*/device/vendor"))
    if not count:
        return Unavailable("no driver found: no render node of Intel")
    return visible(count, MASK, f"torch for XPU {release}" if release else "intel_extension_for_pytorch is installed")


def _is_intel(node: Path) -> bool:
    try:
        return node.read_text().strip() == INTEL
    except OSError:
        return False
