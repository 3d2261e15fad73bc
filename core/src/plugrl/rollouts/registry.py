"""The registry of rollout backends. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.errors import PluginError
from plugrl.registry import Registry

if TYPE_CHECKING:
    from plugrl.rollouts.base import RolloutBackend

B = TypeVar("B", bound=type)


def check_rollout(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` is a RolloutBackend subclass that leaves no member open."""
    from plugrl.rollouts.base import RolloutBackend

    if not isinstance(value, type) or not issubclass(value, RolloutBackend):
        raise PluginError(f'Rollout backend "{key}" must be a subclass of RolloutBackend, got {value!r}.')
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f'Rollout backend "{key}" ({value.__qualname__}) does not implement {", ".join(missing)}.')


ROLLOUTS: Registry[type[RolloutBackend]] = Registry("rollout", check=check_rollout)
"""Meta of an entry: ``schema``, the target of the pydantic model of ``rollout.options``, or None."""


def register_rollout(name: str, *, schema: Any = None, force: bool = False, summary: str = "") -> Callable[[B], B]:
    """Return a class decorator that registers a rollout backend. Raises PluginError, DuplicateRegistration."""

    def decorate(value: B) -> B:
        ROLLOUTS.register(name, value, force=force, summary=summary, meta={"schema": schema})
        return value

    return decorate


def get_rollout(name: str) -> type[RolloutBackend]:
    """Return the backend's class. Raises NotRegistered with candidates and the reasons of failed plugins."""
    return ROLLOUTS.get(name)
