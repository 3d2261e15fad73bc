"""The registry of platforms. Importing it imports no torch; the built-in one is a lazy target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from plugrl.errors import PlatformNotFound, PluginError, one_of
from plugrl.platforms.base import PlatformBase
from plugrl.platforms.capabilities import PLATFORM_CAPABILITIES, bad_capabilities
from plugrl.registry import Registry

DEFAULT_PRIORITY = 50
P = TypeVar("P", bound=type)


def check_platform(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` is a PlatformBase subclass that leaves no member open (rule PF-4)."""
    if not isinstance(value, type) or not issubclass(value, PlatformBase):
        raise PluginError(f'Platform "{key}" must be a subclass of PlatformBase, got {value!r}.')
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f'Platform "{key}" ({value.__qualname__}) does not implement {", ".join(missing)}.')


PLATFORMS: Registry[type[PlatformBase]] = Registry("platform", check=check_platform, not_found=PlatformNotFound)
"""Meta of an entry: ``vendor``, ``device``, ``probe`` (a target or a callable, may be None), ``priority``,
``capabilities`` (a tuple of ids)."""

_NOT_OF_VIRTUAL_DEVICES = {
    *("platform.index", "platform.copy", "platform.mixed_device_error", "platform.accelerator"),
    *("platform.rng.isolation", "platform.memory.stats", "platform.memory.exact", "platform.memory.limit"),
    *("platform.streams", "platform.visible_env", "platform.pin_memory", "platform.ipc", "runtime.visible_env"),
    *("runtime.resource", "dist.dtensor.random"),
}
"""What the built-in platform does not declare: its devices are slots of one processor, without memory of their own."""

PLATFORMS.register_target(
    "cpu",
    "plugrl.platforms.cpu:CpuPlatform",
    summary="the host's processor, cut into virtual devices",
    meta={
        "vendor": "cpu",
        "device": "cpu",
        "probe": "plugrl.platforms.probe:always",
        "priority": 0,
        "capabilities": tuple(name for name in PLATFORM_CAPABILITIES if name not in _NOT_OF_VIRTUAL_DEVICES),
    },
)


def declared_capabilities(name: str, platform: PlatformBase | None = None) -> tuple[str, ...]:
    """Return what the entry registered under ``name`` declares; with an instance, what this installation has of it.

    Raises PlatformNotFound, and PluginError when the instance offers more than is declared.
    """
    entry = PLATFORMS.entry(name)
    declared = tuple(entry.meta.get("capabilities", ()))
    if platform is None:
        return declared
    offered = tuple(platform.offered_capabilities(declared))
    more = [item for item in offered if item not in declared]
    if more:
        raise PluginError(f'Platform "{entry.key}" offers {one_of(more)}, which its manifest does not declare.')
    return offered


class PlatformRegistry:
    """Platforms by name: the decorator for scripts and extension modules, and the views."""

    @classmethod
    def register(
        cls,
        platform: str,
        *,
        aliases: Sequence[str] = (),
        priority: int = DEFAULT_PRIORITY,
        probe: Callable[[], Any] | str | None = None,
        force: bool = False,
        summary: str = "",
        capabilities: Sequence[str] = (),
    ) -> Callable[[P], P]:
        """Return a class decorator that registers a platform under a name, trimmed and in lower case.

        Without a ``probe`` the class is asked by ``is_platform_available(use_smi_check=True)``. Raises PluginError for
        an unfit class or an unknown capability and DuplicateRegistration when another one has the name.
        """
        wrong = list(bad_capabilities(capabilities))
        if wrong:
            raise PluginError(f'Platform "{platform}": {"; ".join(wrong)}.')

        def decorate(value: P) -> P:
            declared = tuple(capabilities)
            meta = {"vendor": None, "device": None, "probe": probe, "priority": priority, "capabilities": declared}
            PLATFORMS.register(
                platform,
                value,
                force=force,
                aliases=aliases,
                summary=summary,
                meta=meta,
            )
            return value

        return decorate

    @classmethod
    def get(cls, name: str) -> type[PlatformBase] | None:
        """Return the class registered under a name or alias, None for an unknown or empty name."""
        return PLATFORMS.find(name) if name and name.strip() else None

    @classmethod
    def registered_names(cls) -> tuple[str, ...]:
        """Return the names, sorted, without aliases."""
        return PLATFORMS.keys()

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Return every entry as plain values, with vendor, device and priority."""
        rows = PLATFORMS.describe()
        for row in rows:
            meta = PLATFORMS.entry(row["key"]).meta
            row.update({name: meta.get(name) for name in ("vendor", "device", "priority")})
        return rows
