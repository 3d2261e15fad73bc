"""Hardware that is no accelerator, such as robots: types by name, which plugins may add.

A node group with a ``hardware`` section is placed by its units instead of its accelerators. The type says how one entry
of ``hardware.configs`` looks; each entry is one unit on the node that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from plugrl.errors import PluginError
from plugrl.registry import Registry


class HardwareUnit(BaseModel):
    """One unit, as ``hardware.configs`` describes it: derive from it and add the keys of the type."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    node_rank: int = Field(ge=0)
    """The node that the unit is attached to."""


class VirtualUnit(HardwareUnit):
    """A unit that exists by configuration alone: it tries a placement out before the hardware is there."""

    name: str = ""
    """What it stands for."""


U = TypeVar("U", bound=type[HardwareUnit])


def _check(key: Any, value: Any) -> None:
    if not (isinstance(value, type) and issubclass(value, HardwareUnit)):
        raise PluginError(f'Hardware "{key}" must be a subclass of HardwareUnit, got {value!r}.')


HARDWARE: Registry[type[HardwareUnit]] = Registry("hardware", check=_check)
HARDWARE.register("virtual", VirtualUnit, summary="units that exist by configuration alone")


def register_hardware(name: str, *, force: bool = False, summary: str = "") -> Callable[[U], U]:
    """Return a decorator for a :class:`HardwareUnit` subclass. Raises DuplicateRegistration."""

    def decorate(value: U) -> U:
        HARDWARE.register(name, value, force=force, summary=summary)
        return value

    return decorate
