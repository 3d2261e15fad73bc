"""Registering platforms: names, duplicates and what is refused (rules PF-1 to PF-4)."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugrl.errors import DuplicateRegistration, PluginError
from plugrl.platforms import Available, PlatformBase, PlatformRegistry
from plugrl.platforms.registry import declared_capabilities

Make = Callable[..., type[PlatformBase]]

ABSTRACT = {
    "device_name",
    "vendor_name",
    "device_module",
    "is_available",
    "current_device",
    "device_count",
    "set_device",
    "synchronize",
    "manual_seed",
    "manual_seed_all",
    "set_allocator_settings",
    "empty_cache",
    "get_device_capability",
    "communication_backend_name",
    "visible_devices_envvar",
    "ray_resource_name",
    "ray_noset_envvars",
    "is_ipc_supported",
    "nvtx_range",
    "profiler_start",
    "profiler_stop",
    "cudart",
}
CONCRETE = {
    "is_platform_available",
    "get_collective_module",
    "ray_resource_options",
    "rollout_env_vars",
    "get_device_uuid",
    "apply_model_patches",
    "check_smi_command",
    "offered_capabilities",
    "sdk_version",
}


def test_abstract_members_are_those_of_the_guide() -> None:
    assert PlatformBase.__abstractmethods__ == ABSTRACT
    assert all(hasattr(PlatformBase, name) for name in CONCRETE)


def test_names_are_trimmed_and_lower_cased(make_platform: Make) -> None:
    cls = PlatformRegistry.register(platform="  Acme ")(make_platform())
    assert PlatformRegistry.get(" ACME") is cls
    assert PlatformRegistry.registered_names() == ("acme", "cpu")


@pytest.mark.parametrize("name", ["nothing", "", "  "])
def test_unknown_or_empty_name_is_none(name: str) -> None:
    assert PlatformRegistry.get(name) is None


def test_same_class_twice_is_nothing(make_platform: Make) -> None:
    cls = make_platform()
    PlatformRegistry.register(platform="acme")(cls)
    PlatformRegistry.register(platform="acme")(cls)
    assert PlatformRegistry.get("acme") is cls


def test_another_class_is_refused_and_the_first_stays(make_platform: Make) -> None:
    first, second = make_platform(), make_platform()
    PlatformRegistry.register(platform="acme")(first)
    with pytest.raises(DuplicateRegistration, match=r"acme .*force=True"):
        PlatformRegistry.register(platform="acme")(second)
    assert PlatformRegistry.get("acme") is first


def test_force_overrides_and_is_logged(make_platform: Make, caplog: pytest.LogCaptureFixture) -> None:
    second = make_platform()
    PlatformRegistry.register(platform="acme")(make_platform())
    with caplog.at_level(logging.WARNING):
        PlatformRegistry.register(platform="acme", force=True)(second)
    assert PlatformRegistry.get("acme") is second
    assert "acme" in caplog.text
    row = next(row for row in PlatformRegistry.describe() if row["key"] == "acme")
    assert len(row["overrides"]) == 1 and row["priority"] == 50


@pytest.mark.parametrize("thing", [object(), int, lambda: None])
def test_what_is_no_platform_is_refused(thing: Any) -> None:
    with pytest.raises(PluginError, match="PlatformBase"):
        PlatformRegistry.register(platform="acme")(thing)
    assert PlatformRegistry.get("acme") is None


def test_incomplete_platform_is_refused_naming_the_members() -> None:
    class Incomplete(PlatformBase):
        pass

    with pytest.raises(PluginError, match=r"cudart.*device_count.*vendor_name"):
        PlatformRegistry.register(platform="acme")(Incomplete)


def test_incomplete_target_is_refused_at_first_use(platforms: Any) -> None:
    platforms.register_target("acme", "plugrl.platforms.base:PlatformBase")
    with pytest.raises(PluginError, match="device_count"):
        PlatformRegistry.get("acme")


def _script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return name


def test_smi_command_is_true_only_for_exit_code_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "plain-smi").write_text("not executable")
    assert PlatformBase.check_smi_command(_script(tmp_path, "good-smi", "exit 0"))
    assert not PlatformBase.check_smi_command(_script(tmp_path, "bad-smi", "exit 3"))
    assert not PlatformBase.check_smi_command("plain-smi")
    assert not PlatformBase.check_smi_command("no-such-smi")


def test_hanging_smi_command_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    start = time.monotonic()
    assert not PlatformBase.check_smi_command(_script(tmp_path, "slow-smi", "exec sleep 60"), timeout_s=0.3)
    assert time.monotonic() - start < 10


def test_the_built_in_platform_declares_what_virtual_devices_can_do() -> None:
    declared = declared_capabilities("cpu")
    assert {"platform.devices", "numerics.fp32", "dist.fsdp2", "rl.resume"} <= set(declared)
    assert not {"platform.memory.limit", "platform.visible_env"} & set(declared)
    pytest.importorskip("torch")
    from plugrl.platforms.cpu import CpuPlatform

    assert declared_capabilities("cpu", CpuPlatform()) == declared


def test_a_build_may_offer_less_than_is_declared_and_never_more(make_platform: Make) -> None:
    cls = make_platform()
    PlatformRegistry.register(platform="small", probe=Available, capabilities=("platform.rng",))(cls)
    cls.offered_capabilities = lambda self, declared: ()
    assert declared_capabilities("small", cls()) == ()
    cls.offered_capabilities = lambda self, declared: (*declared, "platform.ipc")
    with pytest.raises(PluginError, match='"small" offers platform.ipc, which its manifest does not declare'):
        declared_capabilities("small", cls())


def test_the_decorator_refuses_an_unknown_capability(make_platform: Make) -> None:
    with pytest.raises(PluginError, match="did you mean platform.streams"):
        PlatformRegistry.register(platform="small", capabilities=("platform.stream",))
