"""The manifest of the device for tests. Imports nothing heavy: targets are resolved on first use."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, PlatformEntry, Plugin

plugin = Plugin(
    name="platform_vdev",
    api=PLUGIN_API,
    requires_core=">=0.1,<0.2",
    summary="a device for tests: torch's vdev with the collectives vccl, in host memory",
    platforms=(
        PlatformEntry(
            name="vdev",
            vendor="plugrl",
            device="vdev",
            target="plugrl_platform_vdev.platform:VdevPlatform",
            probe="plugrl_platform_vdev.probe:probe",
            summary="a device for tests, never chosen by itself",
            priority=-1,  # never chosen by itself
            needs=("torch",),
            capabilities=(),
        ),
    ),
)
