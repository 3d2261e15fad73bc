"""The registry of weight syncers. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.errors import PluginError
from plugrl.registry import Registry

if TYPE_CHECKING:
    from plugrl.runtime.sync.base import WeightSyncer

S = TypeVar("S", bound=type)

AUTO = "auto"
"""The word that is no kind: the best of those built in is chosen for the route."""


def check_weight_syncer(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` is a WeightSyncer subclass that leaves no member open."""
    from plugrl.runtime.sync.base import WeightSyncer

    if key == AUTO:
        raise PluginError(f'Weight syncer "{key}" cannot be registered: the word chooses among those that are.')
    if not isinstance(value, type) or not issubclass(value, WeightSyncer):
        raise PluginError(f'Weight syncer "{key}" must be a subclass of WeightSyncer, got {value!r}.')
    missing = sorted(getattr(value, "__abstractmethods__", ()))
    if missing:
        raise PluginError(f'Weight syncer "{key}" ({value.__qualname__}) does not implement {", ".join(missing)}.')


WEIGHT_SYNCERS: Registry[type[WeightSyncer]] = Registry("weight_syncer", check=check_weight_syncer)

for _name, _summary in (
    ("bucket", "all weights in buckets, through shared memory or Ray's object store"),
    ("patch", "the elements that changed, exactly"),
    ("handle", "the receiver maps the sender's memory, without a copy of its own"),
    ("full", "the whole state as one object through Ray's object store: the plain way, to compare with"),
):
    WEIGHT_SYNCERS.register_target(
        _name, f"plugrl.runtime.sync.{_name}:{_name.capitalize()}Syncer", summary=_summary
    )


def register_weight_syncer(name: str, *, force: bool = False, summary: str = "") -> Callable[[S], S]:
    """Return a class decorator that registers a weight syncer. Raises PluginError, DuplicateRegistration."""

    def decorate(value: S) -> S:
        WEIGHT_SYNCERS.register(name, value, force=force, summary=summary)
        return value

    return decorate


def get_weight_syncer(name: str) -> type[WeightSyncer]:
    """Return the class of a kind. Raises NotRegistered with candidates and the reasons of failed plugins."""
    return WEIGHT_SYNCERS.get(name)
