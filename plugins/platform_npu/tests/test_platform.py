"""What the manifest names and the platform answers; the kit checks the rest at L0. No device is needed."""

from __future__ import annotations

from plugrl_platform_npu.plugin import plugin

NAME = "npu"
VENDOR = "huawei"
DEVICE = "npu"


def test_the_manifest_names_the_platform() -> None:
    (entry,) = plugin.platforms
    assert (entry.name, entry.vendor, entry.device) == (NAME, VENDOR, DEVICE)


def test_the_platform_answers() -> None:
    from plugrl_platform_npu.platform import NpuPlatform

    platform = NpuPlatform()
    assert (platform.device_name, platform.vendor_name) == (DEVICE, VENDOR)
    assert platform.communication_backend_name() == "hccl"
    assert platform.visible_devices_envvar() == "ASCEND_RT_VISIBLE_DEVICES"
    assert platform.ray_resource_options(1) == {"resources": {"NPU": 1}}


def test_the_engines_are_found() -> None:
    from plugrl.engines import EngineRegistry
    from plugrl.plugins import load_plugins

    load_plugins()
    for backend in ("fsdp2", "fsdp", "ddp"):
        first = EngineRegistry.explain("language_model", backend, device=DEVICE, vendor=VENDOR).steps[0]
        assert first.found or first.skipped
