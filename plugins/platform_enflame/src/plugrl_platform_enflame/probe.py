"""Is the hardware here? Asked at every start, on every node: quick, without the SDK, and no device is initialised."""

from __future__ import annotations

from plugrl.platforms.probe import ProbeResult, Unavailable
from plugrl.platforms.probe_facts import device_files, is_installed, visible

MASK = "TOPS_VISIBLE_DEVICES"


def probe() -> ProbeResult:
    """Look for ``torch_gcu``, then count the devices by the files of the driver."""
    if not is_installed("torch_gcu"):
        return Unavailable("torch_gcu is not installed")
    count = device_files("/dev/gcu[0-9]", "/dev/gcu[0-9][0-9]")
    if not count:
        return Unavailable("no driver found: no /dev/gcu0")
    return visible(count, MASK, "torch_gcu is installed")
