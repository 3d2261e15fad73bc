"""What became of every plugin in this process: states, reasons, tracebacks, times. Nothing here loads anything."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plugrl.errors import PlugRLError, nearest, one_of
from plugrl.plugins.discovery import normalize
from plugrl.plugins.fingerprint import Row, fingerprint_of
from plugrl.plugins.manifest import Plugin

State = Literal["active", "disabled", "incompatible", "failed", "shadowed"]
Phase = Literal["import", "validate", "stage", "commit"]


@dataclass(frozen=True, kw_only=True)
class PluginRecord:
    """The one state a plugin ended in.

    ``reason`` is a phrase for every state but active. ``phase``, ``error`` and ``traceback`` are set when it failed.
    ``manifest`` is None when it was not imported or is no manifest. ``timings`` is time in milliseconds by phase, less
    what other processes had the processor for; ``heavy_imports`` are large libraries that its manifest pulled in, which
    it should not.
    """

    name: str
    value: str
    distribution: str | None = None
    version: str | None = None
    path: str | None = None
    state: State = "active"
    reason: str = ""
    phase: Phase | None = None
    error: BaseException | None = field(default=None, compare=False, repr=False)
    traceback: str = field(default="", repr=False)
    timings: Mapping[str, float] = field(default_factory=dict, compare=False)
    heavy_imports: tuple[str, ...] = ()
    manifest: Plugin | None = field(default=None, repr=False)

    @property
    def names(self) -> set[str]:
        """Return the normalised names of the plugin and its distribution."""
        return {normalize(name) for name in (self.name, self.distribution) if name}

    @property
    def title(self) -> str:
        """Return ``plugrl-platform-acme 0.2``, or the plugin's name when it has no distribution."""
        return f"{self.distribution or self.name} {self.version or ''}".rstrip()

    @property
    def import_ms(self) -> float:
        """Return the time in milliseconds that the import of the manifest took, see ``timings``."""
        return self.timings.get("import", 0.0)

    @property
    def is_broken(self) -> bool:
        """Tell whether strict mode objects to the state."""
        return self.state in ("failed", "incompatible", "shadowed")

    def sentence(self) -> str:
        """Say in one line what keeps the plugin out and what to do next; empty for an active one."""
        # The name of a shadowed plugin leads to the one that shadows it.
        doctor = f"Run `plugrl plugins doctor {self.distribution if self.state == 'shadowed' else self.name}`."
        if self.state == "failed":
            return f"{self.title} failed in {self.phase}: {self.reason}. {doctor}"
        if self.state == "disabled":
            return f"{self.title} is disabled by {self.reason}."
        return "" if self.state == "active" else f"{self.title} is {self.state}: {self.reason}. {doctor}"

    def provides(self) -> dict[str, list[str]]:
        """Return what the manifest declares: kind -> keys as text; empty when the manifest is unknown."""
        from plugrl.registry import format_key

        found: dict[str, list[str]] = {}
        for entry in self.manifest.entries() if self.manifest else ():
            found.setdefault(entry.kind, []).extend(format_key(key) for key in entry.keys())
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json`` and run records."""
        manifest = self.manifest
        return {
            "name": self.name,
            "entry": self.value,
            "distribution": self.distribution,
            "version": self.version,
            "path": self.path,
            "state": self.state,
            "reason": self.reason,
            "phase": self.phase,
            "error": type(self.error).__name__ if self.error else None,
            "traceback": self.traceback or None,
            "import_ms": round(self.import_ms, 3),
            "timings_ms": {phase: round(spent, 3) for phase, spent in self.timings.items()},
            "heavy_imports": list(self.heavy_imports),
            "api": manifest.api if manifest else None,
            "requires_core": manifest.requires_core if manifest else None,
            "summary": manifest.summary if manifest else "",
            "url": manifest.url if manifest else "",
            "provides": self.provides(),
            "patches": [patch.target for patch in manifest.patches] if manifest else [],
        }


@dataclass(frozen=True, kw_only=True)
class ExtensionRecord:
    """What became of one module of ``RLINF_EXT_MODULE``."""

    module: str
    state: Literal["active", "failed"] = "active"
    reason: str = ""
    error: BaseException | None = field(default=None, compare=False, repr=False)
    traceback: str = field(default="", repr=False)
    import_ms: float = 0.0
    heavy_imports: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json`` and run records."""
        return {
            "module": self.module,
            "state": self.state,
            "reason": self.reason,
            "traceback": self.traceback or None,
            "import_ms": round(self.import_ms, 3),
            "heavy_imports": list(self.heavy_imports),
        }


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The outcome of loading, the same for every order of discovery.

    ``errors`` are the failures that nobody may ignore, because the user named what failed or asked for strictness.
    """

    records: tuple[PluginRecord, ...] = ()
    extensions: tuple[ExtensionRecord, ...] = ()
    errors: tuple[PlugRLError, ...] = ()

    def find(self, name: str) -> PluginRecord | None:
        """Return the record of a plugin by its own or its distribution's name, an active one before others."""
        matches = [record for record in self.records if normalize(name) in record.names]
        return min(matches, key=lambda record: record.state != "active", default=None)

    def not_installed(self, name: str) -> str:
        """Return the text for a name that no installed plugin has."""
        known = {record.name for record in self.records}
        like = nearest(name, known)
        hint = f" Did you mean {like}?" if like else ""
        return f'No plugin "{name}" is installed.{hint} Installed: {one_of(known)}.'

    @property
    def active(self) -> tuple[PluginRecord, ...]:
        """Return the plugins that are in use."""
        return tuple(record for record in self.records if record.state == "active")

    @property
    def rows(self) -> tuple[Row, ...]:
        """Return what the fingerprint is made of, without the disabled plugins: they leave no trace in a process."""
        return tuple(
            sorted(
                Row(record.distribution or "", record.version or "", record.name, record.value, record.state)
                for record in self.records
                if record.state != "disabled"
            )
        )

    @property
    def fingerprint(self) -> str:
        """Return the hash that driver and workers compare."""
        return fingerprint_of(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json`` and run records."""
        return {
            "fingerprint": self.fingerprint,
            "plugins": [record.to_dict() for record in self.records],
            "extensions": [record.to_dict() for record in self.extensions],
            "errors": [str(error) for error in self.errors],
        }


_current: Ledger | None = None


def current_ledger() -> Ledger | None:
    """Return the ledger of this process, None before :func:`plugrl.plugins.load_plugins`."""
    return _current


def set_current_ledger(ledger: Ledger | None) -> None:
    """Keep the ledger for look-up errors; the loader calls this."""
    global _current
    _current = ledger


def failures_for(kind: str, key: Hashable) -> list[str]:
    """Return one sentence per plugin that is not active and provides ``key`` of a registry, or may provide it.

    A manifest that was read tells for sure. One that could not be imported is matched by the plugin's name; when no
    name matches, every such plugin is listed, because it might be the one. Disabled ones share a sentence for each list
    that keeps them out.
    """
    if _current is None:
        return ["Plugins are not loaded in this process: call plugrl.plugins.load_plugins() first."]
    inactive = [record for record in _current.records if record.state != "active"]
    known = [record for record in inactive if record.manifest and _declares(record.manifest, kind, key)]
    if known:
        return [f"A plugin provides it: {record.sentence()}" for record in known]
    unread = [record for record in inactive if record.manifest is None]
    named = [record for record in unread if _is_named_after(record, key)]
    if named:
        return [f"A plugin of that name is installed: {record.sentence()}" for record in named]
    failed = [f"A plugin that may provide it: {record.sentence()}" for record in unread if record.state == "failed"]
    disabled: dict[str, list[str]] = {}
    for record in unread:
        if record.state == "disabled":
            disabled.setdefault(record.reason, []).append(record.title)
    return failed + [
        f"Disabled by {reason}, and perhaps what provides it: {one_of(titles)}." for reason, titles in disabled.items()
    ]


def _declares(manifest: Plugin, kind: str, key: Hashable) -> bool:
    wanted = _parts(key)
    for entry in manifest.entries():
        claimed = [*entry.keys(), *getattr(entry, "aliases", ())] if entry.kind == kind else []
        if any(_fits(_parts(each), wanted) for each in claimed):
            return True
    return False


def _fits(claimed: tuple[str | None, ...], wanted: tuple[str | None, ...]) -> bool:
    """Compare part by part; ``*`` and None stand for anything, as does a part that is not given."""
    return all(a == b or "*" in (a, b) or None in (a, b) for a, b in zip(claimed, wanted, strict=False))


def _is_named_after(record: PluginRecord, key: Hashable) -> bool:
    words = {word for name in record.names for word in name.split("-")} | record.names
    return any(normalize(part) in words for part in _parts(key) if part and part != "*")


def _parts(key: Hashable) -> tuple[str | None, ...]:
    parts: Iterator[Any] = iter(key if isinstance(key, tuple) else (key,))
    return tuple(None if part is None else str(part).strip().lower() for part in parts)
