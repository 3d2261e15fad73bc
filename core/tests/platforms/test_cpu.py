"""The built-in platform and the generic one over torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from plugrl.errors import ConfigError, PlatformUnavailable  # noqa: E402
from plugrl.platforms import get_platform  # noqa: E402
from plugrl.platforms.cpu import CpuPlatform, has_fast_bf16  # noqa: E402
from plugrl.platforms.generic import TorchAcceleratorPlatform  # noqa: E402


def test_cpu_is_a_platform_without_an_accelerator_resource() -> None:
    platform = get_platform("cpu")
    assert (platform.device_name, platform.vendor_name) == ("cpu", "cpu")
    assert platform.communication_backend_name() == "gloo"
    assert platform.ray_resource_options(1) == {} and platform.ray_noset_envvars() == []
    assert platform.get_device_uuid(2) == "CPU-2"
    assert torch.zeros(1, device=platform.device_name).device.type == "cpu"


def test_virtual_devices_are_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLUGRL_CPU_DEVICES", raising=False)
    platform = CpuPlatform()
    assert platform.device_count() == 8
    monkeypatch.setenv("PLUGRL_CPU_DEVICES", "2")
    platform.set_device(1)
    assert platform.device_count() == 2 and platform.current_device() == 1
    with pytest.raises(ValueError, match="PLUGRL_CPU_DEVICES"):
        platform.set_device(2)
    assert platform.current_device() == 1
    monkeypatch.setenv("PLUGRL_CPU_DEVICES", "none")
    with pytest.raises(ConfigError, match="PLUGRL_CPU_DEVICES"):
        platform.device_count()


def test_random_state_comes_back() -> None:
    platform = CpuPlatform()
    platform.manual_seed(3)
    state = platform.rng_state()
    first = torch.rand(4)
    platform.set_rng_state(state)
    assert torch.equal(torch.rand(4), first)
    platform.manual_seed_all(3)
    assert torch.equal(torch.rand(4), first)


@pytest.mark.parametrize(
    ("flags", "fast"),
    [("sse2 avx512_bf16 amx_tile", True), ("amx_bf16", True), ("avx2 avx512f", False), ("xavx512_bf16", False)],
)
def test_bf16_is_fast_where_the_processor_has_instructions(tmp_path: Path, flags: str, fast: bool) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: avx512_bf16\n")
    assert has_fast_bf16(info) is fast
    assert has_fast_bf16(tmp_path / "absent") is False


def test_profiling_members_do_no_harm() -> None:
    platform = CpuPlatform()
    platform.profiler_start()
    with platform.nvtx_range("my range"):
        total = torch.ones(2).sum()
    platform.profiler_stop()
    assert total == 2 and platform.cudart() is None


class Anvil(TorchAcceleratorPlatform):
    """What a vendor has to write."""

    device_name = "anvil"
    vendor_name = "acme"

    def communication_backend_name(self) -> str:
        return "accl"

    def visible_devices_envvar(self) -> str:
        return "ANVIL_VISIBLE_DEVICES"


def test_generic_platform_without_its_torch_extension_is_unavailable() -> None:
    assert not Anvil().is_available() and not Anvil().is_platform_available(use_smi_check=True)
    with pytest.raises(PlatformUnavailable, match="torch.anvil"):
        Anvil().current_device()
    Broken = type("Broken", (Anvil,), {"extension": "torch_anvil_extension"})
    with pytest.raises(PlatformUnavailable, match="torch_anvil_extension"):
        Broken().device_count()


def test_generic_platform_answers_from_the_device_module() -> None:
    calls: list[Any] = []
    module = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        current_device=lambda: 1,
        set_device=calls.append,
        synchronize=lambda *index: calls.append(("sync", *index)),
        get_device_capability=lambda index: (9, index),
        is_bf16_supported=lambda: True,
        empty_cache=lambda: calls.append("empty"),
    )
    platform = type("Working", (Anvil,), {"device_module": module})()
    assert platform.is_available() and platform.device_count() == 2 and platform.current_device() == 1
    assert platform.get_device_capability(1) == (9, 1) and platform.preferred_dtype() == "bf16"
    platform.set_device(1)
    platform.synchronize()
    platform.synchronize(0)
    platform.empty_cache()
    platform.set_allocator_settings("expandable_segments:True")
    assert calls == [1, ("sync",), ("sync", 0), "empty"]
    with pytest.raises(ValueError, match="2"):
        platform.set_device(2)
    assert platform.ray_noset_envvars() == ["RAY_EXPERIMENTAL_NOSET_ANVIL_VISIBLE_DEVICES"]


def test_the_sdk_is_named_by_the_distribution_of_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Anvil, "extension", "pytest.mark")
    assert Anvil().sdk_version() == f"pytest {pytest.__version__}"
    monkeypatch.setattr(Anvil, "extension", "no_such_extension")
    assert Anvil().sdk_version() == ""
    monkeypatch.setattr(Anvil, "extension", None)
    assert Anvil().sdk_version() == ""
