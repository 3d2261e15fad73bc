"""Platforms made up for the tests, and a registry that holds the built-in one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import plugrl.platforms.probing as probing_module
import plugrl.platforms.registry as registry_module
import plugrl.platforms.selection as selection_module
import plugrl.platforms.visible as visible_module
from plugrl.errors import PlatformNotFound
from plugrl.platforms import PlatformBase, reset
from plugrl.registry import Registry


class FakePlatform(PlatformBase):
    """A complete platform without hardware."""

    device_name = "fake"
    vendor_name = "acme"
    device_module = None
    available = True
    resource = "GPU"
    mask_variable = "FAKE_VISIBLE_DEVICES"
    count = 4

    def is_available(self) -> bool:
        return self.available

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return self.count

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return self.mask_variable

    def ray_resource_name(self) -> str:
        return self.resource

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_FAKE_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def cudart(self) -> Any:
        return None


@pytest.fixture(autouse=True)
def platforms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry[Any]]:
    """A registry with cpu alone; no platform is chosen before or after the test, and no variable chooses one."""
    registry: Registry[Any] = Registry("platform", check=registry_module.check_platform, not_found=PlatformNotFound)
    cpu = registry_module.PLATFORMS.entry("cpu")
    registry.register_target("cpu", cpu.target or "", meta=cpu.meta, origin=cpu.origin)
    for module in (probing_module, registry_module, selection_module, visible_module):
        monkeypatch.setattr(module, "PLATFORMS", registry)
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    reset()
    yield registry
    reset()


@pytest.fixture
def make_platform() -> Callable[..., type[FakePlatform]]:
    """Return a factory of complete platform classes with some members replaced."""

    def make(**members: Any) -> type[FakePlatform]:
        return type("MadePlatform", (FakePlatform,), members)

    return make
