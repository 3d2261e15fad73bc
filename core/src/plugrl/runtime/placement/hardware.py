"""Hardware that is no accelerator, such as robots: types by name, which plugins may add.

A node group with a ``hardware`` section is placed by its units instead of its accelerators. The type says how one entry
of ``hardware.configs`` looks; each entry is one unit on the node that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.errors import PluginError
from plugrl.registry import Registry

if TYPE_CHECKING:
    from plugrl.runtime.placement.units import HardwareUnit

U = TypeVar("U", bound="type[HardwareUnit]")


def _check(key: Any, value: Any) -> None:
    from plugrl.runtime.placement.units import HardwareUnit

    if not (isinstance(value, type) and issubclass(value, HardwareUnit)):
        raise PluginError(f'Hardware "{key}" must be a subclass of HardwareUnit, got {value!r}.')


HARDWARE: Registry[type[HardwareUnit]] = Registry("hardware", check=_check)
HARDWARE.register_target(
    "virtual", "plugrl.runtime.placement.units:VirtualUnit", summary="units that exist by configuration alone"
)


def register_hardware(name: str, *, force: bool = False, summary: str = "") -> Callable[[U], U]:
    """Return a decorator for a :class:`HardwareUnit` subclass. Raises DuplicateRegistration."""

    def decorate(value: U) -> U:
        HARDWARE.register(name, value, force=force, summary=summary)
        return value

    return decorate
