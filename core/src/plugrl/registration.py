"""One claim on a key of a registry, and when two claims stand for the same object."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from plugrl.provenance import Origin

Key = Hashable


def normalize_name(key: Any) -> Any:
    """Compare names without case and surrounding space; tuples element by element; anything else is left alone."""
    if isinstance(key, str):
        return key.strip().lower()
    if isinstance(key, tuple):
        return tuple(normalize_name(part) for part in key)
    return key


def format_key(key: Any) -> str:
    """Write a key the way messages show it: a tuple is joined by ``/``, without its None parts."""
    if isinstance(key, tuple):
        return "/".join(str(part) for part in key if part is not None)
    return str(key)


@dataclass(frozen=True, kw_only=True)
class Registration:
    """One claim on a key: an object (``value``) or where to import it from (``target``), never both.

    ``needs`` are names of modules that must be importable before the target is tried; ``aliases`` are further keys that
    lead to the same entry; ``meta`` holds what the kind needs besides (a probe, a category, a schema).
    """

    key: Key
    value: Any = None
    target: str | None = None
    origin: Origin = Origin()
    aliases: tuple[Key, ...] = ()
    summary: str = ""
    needs: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    force: bool = False

    @property
    def location(self) -> str:
        """The ``module:attribute`` this registration stands for, as far as the object tells."""
        return self.target or location_of(self.value)


@dataclass(frozen=True, kw_only=True)
class RegistryEntry(Registration):
    """What a registry holds under a key: the winning registration and those it overrode, oldest first."""

    history: tuple[Registration, ...] = ()

    @classmethod
    def of(cls, registration: Registration, history: tuple[Registration, ...]) -> RegistryEntry:
        """Return the entry for a registration that has won its key."""
        return cls(**_values(registration), history=history)

    def without_history(self) -> Registration:
        """Return the bare registration, to be kept in the history of the next one."""
        return Registration(**_values(self))


def location_of(value: Any) -> str:
    """Return ``module:name`` of a class or function, else the name of the object's type."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}:{name}" if module and name else type(value).__name__


def same_object(old: Registration, new: Registration) -> bool:
    """Tell whether both stand for one object: identical, a reload of its module, or a target and its own object."""
    if old.target is not None or new.target is not None:
        return old.location == new.location
    if old.value is new.value:
        return True
    # A reloaded module makes a new object of the same name at the same place. Local functions share names: no match.
    same_name = old.location == new.location and "<" not in old.location and hasattr(new.value, "__qualname__")
    return same_name and (old.origin.file, old.origin.line) == (new.origin.file, new.origin.line)


def _values(registration: Registration) -> dict[str, Any]:
    return {item.name: getattr(registration, item.name) for item in fields(Registration)}
