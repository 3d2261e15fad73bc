"""The registry of environments. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.errors import PluginError
from plugrl.registry import Registry

if TYPE_CHECKING:
    from plugrl.envs.base import VecEnv

F = TypeVar("F", bound=Callable[..., Any])


def check_env(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` can be called to build an environment."""
    if not callable(value):
        raise PluginError(f'Environment "{key}" must be a class or a function that builds a VecEnv, got {value!r}.')
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f'Environment "{key}" ({value.__qualname__}) does not implement {", ".join(missing)}.')


ENVS: Registry[Callable[..., VecEnv]] = Registry("env", check=check_env)


def register_env(name: str, *, schema: Any = None, force: bool = False, summary: str = "") -> Callable[[F], F]:
    """Return a decorator for a VecEnv class or a function that builds one. Raises DuplicateRegistration.

    ``schema`` is the pydantic model of its settings, a subclass of :class:`plugrl.envs.config.EnvParams`, which it is
    called with; without one it gets an EnvParams.
    """

    def decorate(value: F) -> F:
        ENVS.register(name, value, force=force, summary=summary, meta={"schema": schema})
        return value

    return decorate


def get_env(name: str) -> Callable[..., VecEnv]:
    """Return what builds the environment. Raises NotRegistered with candidates and failed plugins."""
    return ENVS.get(name)
