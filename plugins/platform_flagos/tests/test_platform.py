"""The package by itself: the manifest, the probe, the answers of the platform. No device is needed."""

from __future__ import annotations

import subprocess
import sys

from plugrl_platform_flagos.plugin import plugin

NAME = "flagos"
VENDOR = "flagos"
DEVICE = "cuda"
PROBE = """
import sys
from plugrl_platform_flagos.probe import probe
print(type(probe()).__name__, "torch" in sys.modules)
"""


def test_the_manifest_is_sound() -> None:
    (entry,) = plugin.platforms
    assert plugin.problems() == []
    assert (entry.name, entry.vendor, entry.device) == (NAME, VENDOR, DEVICE)


def test_the_probe_answers_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[0] in ("Available", "Unavailable") and done.stdout.split()[1] == "False", done.stderr


def test_the_platform_answers() -> None:
    from plugrl_platform_flagos.platform import FlagosPlatform

    platform = FlagosPlatform()
    assert (platform.device_name, platform.vendor_name) == (DEVICE, VENDOR)
    assert platform.communication_backend_name() == "nccl"
    assert platform.visible_devices_envvar() == "CUDA_VISIBLE_DEVICES"
    assert platform.ray_resource_options(0.5) == {"num_gpus": 0.5}


def test_the_engines_are_found() -> None:
    from plugrl.engines import EngineRegistry
    from plugrl.plugins import load_plugins

    load_plugins()
    for backend in ("fsdp2", "fsdp", "ddp"):
        first = EngineRegistry.explain("language_model", backend, device=DEVICE, vendor=VENDOR).steps[0]
        assert first.found or first.skipped
