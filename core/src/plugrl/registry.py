"""The one generic registry: every named, replaceable part of PlugRL is stored in one of these.

A registry maps a key to an object or to a *target*, a ``"module:attribute"`` string that is imported on first use.
Plugins write through their manifest, scripts and extension modules through the decorators of each kind: two doors, one
store. One duplicate rule holds everywhere: the same object again is nothing; a different one is an error that names
both origins; ``force=True`` overrides, is kept in the entry's history and logged.
"""

from __future__ import annotations

import importlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from plugrl.errors import (
    STOPS,
    DuplicateRegistration,
    MissingDependency,
    NotRegistered,
    PluginError,
    nearest,
    one_line,
    one_of,
)
from plugrl.provenance import Origin, calling_origin, registering
from plugrl.registration import Key, Registration, RegistryEntry, format_key, normalize_name, same_object
from plugrl.targets import import_target, is_importable

__all__ = [
    "REGISTRY_MODULES",
    "Key",
    "Origin",
    "Registration",
    "Registry",
    "RegistryEntry",
    "format_key",
    "import_target",
    "normalize_name",
    "registering",
    "registries",
    "registry_of",
    "staging",
]

T = TypeVar("T")

logger = logging.getLogger(__name__)

REGISTRY_MODULES: Mapping[str, str] = {
    "platform": "plugrl.platforms.registry",
    "engine": "plugrl.engines.registry",
    "model": "plugrl.models.registry",
    "env": "plugrl.envs.registry",
    "rollout": "plugrl.rollouts.registry",
    "reward": "plugrl.rewards.registry",
    "advantage": "plugrl.algorithms.registry",
    "loss": "plugrl.algorithms.registry",
    "logger": "plugrl.tracking.registry",
    "dataset": "plugrl.data.registry",
    "hardware": "plugrl.runtime.placement.hardware",
    "balancer": "plugrl.runtime.channel.balancers",
    "weight_syncer": "plugrl.runtime.sync.registry",
}
"""The light module that holds the registry of each kind, at its top level. Platforms come first: see the loader."""


@dataclass(frozen=True)
class _Failure:
    """Why a target could not be loaded; kept so that every later look-up says the same."""

    error: PluginError | MissingDependency
    traceback: str


class Registry(Generic[T]):
    """Objects of one kind by key.

    Args:
        kind: what it holds, in the singular and for messages: ``engine``.
        normalize: maps a given key to the stored one; by default names ignore case and surrounding space.
        check: ``check(key, value)`` raises when the object does not fit the kind; called on registration, for a target
            when it is first loaded.
        not_found: the error class that :meth:`get` raises for an unknown key.
    """

    def __init__(
        self,
        kind: str,
        *,
        normalize: Callable[[Any], Any] = normalize_name,
        check: Callable[[Any, Any], None] | None = None,
        not_found: type[NotRegistered] = NotRegistered,
    ) -> None:
        self.kind = kind
        self._normalize = normalize
        self._check = check
        self._not_found = not_found
        self._lock = threading.RLock()
        self._entries: dict[Key, RegistryEntry] = {}
        self._aliases: dict[Key, Key] = {}
        self._loaded: dict[Key, Any] = {}
        self._failures: dict[Key, _Failure] = {}

    # -- writing -----------------------------------------------------------------------------------------------------

    def register(
        self,
        key: Key,
        value: T,
        *,
        force: bool = False,
        origin: Origin | None = None,
        aliases: Sequence[Key] = (),
        summary: str = "",
        needs: Sequence[str] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Register an object under ``key``.

        Raises:
            DuplicateRegistration: another object has the key (or an alias) and ``force`` is not set.
            PluginError: whatever ``check`` refuses.
        """
        claim = Registration(key=key, value=value, origin=origin or calling_origin(), summary=summary, force=force)
        self.register_many([replace(claim, aliases=tuple(aliases), needs=tuple(needs), meta=dict(meta or {}))])

    def register_target(
        self,
        key: Key,
        target: str,
        *,
        force: bool = False,
        origin: Origin | None = None,
        aliases: Sequence[Key] = (),
        summary: str = "",
        needs: Sequence[str] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a ``"module:attribute"`` that is imported on the first :meth:`get`. Raises as :meth:`register`."""
        claim = Registration(key=key, target=target, origin=origin or calling_origin(), summary=summary, force=force)
        self.register_many([replace(claim, aliases=tuple(aliases), needs=tuple(needs), meta=dict(meta or {}))])

    def register_many(self, registrations: Iterable[Registration]) -> None:
        """Register all of them or, if one is refused, none. Raises as :meth:`register`."""
        claims = [self._prepare(registration) for registration in registrations]
        stage = _stage.get()
        if stage is not None:
            # What is built in is no plugin's, and stays when the plugin that imported its module first fails.
            stage.extend((self, claim) for claim in claims if claim.origin.source != "built-in")
            claims = [claim for claim in claims if claim.origin.source == "built-in"]
        for note in self.apply(claims):
            logger.warning("%s", note)

    def apply(self, registrations: Iterable[Registration]) -> list[str]:
        """Register all or none as :meth:`register_many`, now even while staging; return what is worth a warning."""
        notes: list[str] = []
        with self._lock:
            before = self.snapshot()
            try:
                for registration in registrations:
                    notes += self._add(self._prepare(registration))
            except BaseException:
                self.restore(before)
                raise
        return notes

    def _prepare(self, new: Registration) -> Registration:
        """Return the claim with normalised keys, after the checks that need no other claim."""
        key = self._normalize(new.key)
        if key in (None, "", ()):
            raise PluginError(f"{new.origin} registers a {self.kind} under an empty key.")
        if new.target is None and self._check is not None:
            self._check(key, new.value)
        aliases = tuple(alias for alias in map(self._normalize, new.aliases) if alias != key)
        return replace(new, key=key, aliases=aliases)

    def _add(self, new: Registration) -> list[str]:
        key, aliases = new.key, new.aliases
        old = self._entries.get(key)
        if old is not None and same_object(old, new):
            self._renew(old, new)
            return []
        notes = self._refuse_conflicts(new, old)
        history = (*old.history, old.without_history()) if old is not None else ()
        self._forget(key)
        self._entries[key] = RegistryEntry.of(new, history)
        self._aliases.update(dict.fromkeys(aliases, key))
        return notes

    def _refuse_conflicts(self, new: Registration, old: RegistryEntry | None) -> list[str]:
        """Raise unless ``new`` may take its key and aliases; return a note per override that ``force`` allows."""
        notes: list[str] = []
        rivals = {} if old is None else {new.key: old}
        if new.key in self._aliases:
            rivals[new.key] = self._entries[self._aliases[new.key]]
        for alias in new.aliases:
            holder = self._entries.get(self._aliases.get(alias, alias))
            if holder is not None and holder.key != new.key:
                rivals[alias] = holder
        for claimed, rival in rivals.items():
            name = f"{self.kind} {format_key(claimed)}"
            # An alias cannot be forced away from its owner: that would leave the owner half reachable.
            if not new.force or rival.key != new.key:
                way = "Disable one, or register with force=True."
                if rival.key != new.key:
                    way = f"It is a name of {format_key(rival.key)}, which force does not take away. Disable one."
                raise DuplicateRegistration(f"{name} is claimed by {rival.origin} and {new.origin}. {way}")
            notes.append(f"{name}: {rival.origin}, overridden by {new.origin} with force.")
        if new.force and not rivals:
            notes.append(f"{self.kind} {format_key(new.key)}: force by {new.origin} overrode nothing.")
        return notes

    def _renew(self, old: RegistryEntry, new: Registration) -> None:
        """Take the newer object of a reloaded module; a target that is now registered by its own class stays."""
        if old.target is None and new.target is None and old.value is not new.value:
            self._entries[old.key] = replace(old, value=new.value)

    def _forget(self, key: Key) -> None:
        self._entries.pop(key, None)
        self._loaded.pop(key, None)
        self._failures.pop(key, None)
        self._aliases = {alias: name for alias, name in self._aliases.items() if name != key}

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> T:
        """Return the object of ``key``, importing its target on first use.

        Raises:
            NotRegistered: (the class given as ``not_found``) with candidates, the nearest name and failed plugins.
            MissingDependency: a module the entry needs is not importable.
            PluginError: the target cannot be loaded or does not fit; the same error again on every call.
        """
        found = self.find(key)
        if found is None:
            raise self._not_found(self.explain_missing(key))
        return found

    def find(self, key: Key) -> T | None:
        """Return the object of ``key``, or None if nothing has that key. Raises as :meth:`get` if it is broken."""
        name = self.canonical(key)
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return None
            if entry.target is None:
                return entry.value
            if name in self._loaded:
                return self._loaded[name]
            failure = self._failures.get(name)
        if failure is not None:
            raise failure.error.with_traceback(None)
        # Without the lock: an import may register, and may wait for another thread's import of the same module.
        return self._load(entry)

    def _load(self, entry: RegistryEntry) -> T:
        try:
            value = self._import(entry)
        except (PluginError, MissingDependency) as error:
            failure = _Failure(error, "".join(traceback.format_exception(error)))
            with self._lock:
                self._failures[entry.key] = failure
            raise
        with self._lock:
            return self._loaded.setdefault(entry.key, value)

    def _import(self, entry: RegistryEntry) -> Any:
        title = f'{self.kind.capitalize()} "{format_key(entry.key)}"'
        missing = [name for name in entry.needs if not is_importable(name)]
        if missing:
            raise MissingDependency(
                f"{title} needs {', '.join(entry.needs)}; not importable: {', '.join(missing)}. "
                f"Install it with: {install_command(missing, entry.origin)}"
            )
        assert entry.target is not None
        try:
            with registering(entry.origin):
                value = import_target(entry.target)
                if self._check is not None:
                    self._check(entry.key, value)
        except STOPS:
            raise
        except BaseException as error:  # Third-party code: any error of it is a failure of this entry alone.
            raise PluginError(
                f"{title} of {entry.origin} failed to load from {entry.target}: {one_line(error)}"
            ) from error
        return value

    def canonical(self, key: Key) -> Key:
        """Return the stored form of a key: normalised, an alias replaced by the name it stands for."""
        name = self._normalize(key)
        return self._aliases.get(name, name)

    def entry(self, key: Key) -> RegistryEntry:
        """Return the entry of ``key`` without importing its target. Raises as :meth:`get` for an unknown key."""
        entry = self._entries.get(self.canonical(key))
        if entry is None:
            raise self._not_found(self.explain_missing(key))
        return entry

    def keys(self) -> tuple[Any, ...]:
        """Return the keys, sorted; aliases are not among them."""
        return tuple(sorted(self._entries, key=format_key))

    def __contains__(self, key: Key) -> bool:
        return self.canonical(key) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def explain_missing(self, key: Key) -> str:
        """Return the text for an unknown key: what is known, what is near, what failed, and the next step."""
        shown = format_key(key)
        names = [format_key(known) for known in (*self.keys(), *self._aliases)]
        like = nearest(format_key(self._normalize(key)), names)
        text = f'No {self.kind} "{shown}".' + (f' Did you mean "{like}"?' if like else "")
        text += f" Known: {one_of(format_key(known) for known in self.keys())}."
        reasons = _explain_failures(self.kind, self._normalize(key))
        next_step = ["Install a plugin that provides it, or run `plugrl plugins list --all`."]
        return " ".join([text, *(reasons or next_step)])

    def describe(self) -> list[dict[str, Any]]:
        """Return every entry as plain values, sorted by key: for ``doctor``, ``--json`` and run records."""
        return [self._describe(self._entries[key]) for key in self.keys()]

    def _describe(self, entry: RegistryEntry) -> dict[str, Any]:
        failure = self._failures.get(entry.key)
        return {
            "kind": self.kind,
            "key": format_key(entry.key),
            "aliases": [format_key(alias) for alias in entry.aliases],
            "target": entry.location,
            "summary": entry.summary,
            "needs": list(entry.needs),
            "origin": entry.origin.to_dict(),
            "overrides": [str(past.origin) for past in entry.history],
            "loaded": entry.target is None or entry.key in self._loaded,
            "error": str(failure.error) if failure else None,
            "traceback": failure.traceback if failure else None,
        }

    # -- scopes ------------------------------------------------------------------------------------------------------

    @contextmanager
    def temporary(self, *, built_in_only: bool = False) -> Iterator[Registry[T]]:
        """Restore the present content when the block ends, however it ends: for tests and for trial loading.

        ``built_in_only`` begins the block without what plugins, extension modules and scripts have registered.
        """
        before = self.snapshot()
        try:
            if built_in_only:
                with self._lock:
                    foreign = [key for key, entry in self._entries.items() if entry.origin.source != "built-in"]
                    for key in foreign:
                        self._forget(key)
            yield self
        finally:
            self.restore(before)

    def snapshot(self) -> tuple[dict[Any, Any], ...]:
        """Return the present content, for :meth:`restore`."""
        with self._lock:
            return dict(self._entries), dict(self._aliases), dict(self._loaded), dict(self._failures)

    def restore(self, state: tuple[dict[Any, Any], ...]) -> None:
        """Put back the content that :meth:`snapshot` returned."""
        with self._lock:
            self._entries, self._aliases, self._loaded, self._failures = map(dict, state)


def install_command(missing: Sequence[str], origin: Origin) -> str:
    """Return the command that brings the modules that an entry of ``origin`` needs.

    A package of PlugRL is named as its module is; anything else is a dependency of the entry's own distribution.
    """
    ours = [name.partition(".")[0].replace("_", "-") for name in missing if name.startswith("plugrl_")]
    others = [name for name in missing if not name.startswith("plugrl_")]
    if others and origin.distribution:
        others = [origin.distribution]
    return f"pip install {' '.join((*ours, *others))}"


_stage: ContextVar[list[tuple[Registry[Any], Registration]] | None] = ContextVar("plugrl_stage", default=None)


@contextmanager
def staging() -> Iterator[list[tuple[Registry[Any], Registration]]]:
    """Collect what the block registers, in any registry, instead of storing it: the loader commits it or drops it."""
    stage: list[tuple[Registry[Any], Registration]] = []
    token = _stage.set(stage)
    try:
        yield stage
    finally:
        _stage.reset(token)


def registries() -> dict[str, Registry[Any]]:
    """Return the registry of every kind, importing their light modules; platforms first."""
    return {kind: registry_of(kind) for kind in REGISTRY_MODULES}


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of one kind: the :class:`Registry` with that kind at the top level of its module."""
    module = importlib.import_module(REGISTRY_MODULES[kind])
    for value in vars(module).values():
        if isinstance(value, Registry) and value.kind == kind:
            return value
    raise PluginError(f"{module.__name__} holds no registry of kind {kind}.")


def _explain_failures(kind: str, key: Key) -> list[str]:
    """Ask the plugin ledger why ``key`` may be missing; imported here because the ledger is above this module."""
    from plugrl.plugins.ledger import failures_for

    return failures_for(kind, key)
