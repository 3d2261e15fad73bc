"""A registry of engines without plugins, platforms made up for the look-up, and engines that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import plugrl.engines.registry as registry_module
from plugrl.errors import EngineNotFound
from plugrl.platforms import reset, set_platform
from plugrl.registry import Registry


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Any]]:
    """An empty registry; no platform and no variable influences the look-up."""
    registry: Registry[Any] = Registry("engine", check=registry_module.check_engine, not_found=EngineNotFound)
    monkeypatch.setattr(registry_module, "ENGINES", registry)
    monkeypatch.setattr(registry_module, "_logged", set())
    for name in ("VERL_PLATFORM", "VERL_ENGINE_DEVICE", "VERL_ENGINE_VENDOR"):
        monkeypatch.delenv(name, raising=False)
    reset()
    yield registry
    reset()


@pytest.fixture
def on_platform() -> Callable[..., None]:
    """Return a function that makes a platform with this device, vendor and generic vendor the current one."""

    from plugrl.platforms.cpu import CpuPlatform

    def use(device: str, vendor: str, generic: str | None = None) -> None:
        members = {
            "device_name": device,
            "vendor_name": vendor,
            "generic_engine_vendor": lambda self: generic,
        }
        set_platform(type("Made", (CpuPlatform,), members)())

    return use


@pytest.fixture
def make_engine() -> Callable[..., Any]:
    """Return a factory of complete engine classes, each another one."""

    from plugrl.engines.base import BaseEngine

    def make(name: str = "MadeEngine", **members: Any) -> Any:
        open_members = {member: lambda self, *args, **kwargs: None for member in BaseEngine.__abstractmethods__}
        return type(name, (BaseEngine,), {**open_members, **members})

    return make
