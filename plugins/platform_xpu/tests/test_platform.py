"""What the manifest names and the platform answers; the kit checks the rest at L0. No device is needed."""

from __future__ import annotations

from plugrl_platform_xpu.plugin import plugin

NAME = "xpu"
VENDOR = "intel"
DEVICE = "xpu"


def test_the_manifest_names_the_platform() -> None:
    (entry,) = plugin.platforms
    assert (entry.name, entry.vendor, entry.device) == (NAME, VENDOR, DEVICE)


def test_the_platform_answers() -> None:
    from plugrl_platform_xpu.platform import XpuPlatform

    platform = XpuPlatform()
    assert (platform.device_name, platform.vendor_name) == (DEVICE, VENDOR)
    assert platform.communication_backend_name() == "xccl"
    assert platform.visible_devices_envvar() == "ZE_AFFINITY_MASK"
    assert platform.ray_resource_options(0.5) == {"num_gpus": 0.5}


def test_the_engines_are_found() -> None:
    from plugrl.engines import EngineRegistry
    from plugrl.plugins import load_plugins

    load_plugins()
    for backend in ("fsdp2", "fsdp", "ddp"):
        first = EngineRegistry.explain("language_model", backend, device=DEVICE, vendor=VENDOR).steps[0]
        assert first.found or first.skipped
