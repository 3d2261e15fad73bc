"""Which plugins are installed: metadata only, nothing is imported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Any
from urllib.parse import unquote, urlsplit

from plugrl.plugins.manifest import ENTRY_POINT_GROUP
from plugrl.provenance import Origin


@dataclass(frozen=True, kw_only=True)
class Discovered:
    """One entry point of the group.

    ``name`` is the plugin's name, ``value`` where its manifest is (``module:attribute``, empty where the metadata are
    damaged). ``distribution`` and ``version`` are None when the metadata do not tell. ``path`` is the source folder of
    an editable install.
    """

    name: str
    value: str
    distribution: str | None = None
    version: str | None = None
    path: str | None = None

    @property
    def names(self) -> set[str]:
        """Return the normalised names that allow, deny and required lists may use for it."""
        return {normalize(name) for name in (self.name, self.distribution) if name}

    @property
    def title(self) -> str:
        """Return how messages call it: ``plugrl-platform-acme 0.2``, or the plugin's name without a distribution."""
        return f"{self.distribution or self.name} {self.version or ''}".rstrip()

    @property
    def origin(self) -> Origin:
        """Return the origin of what it registers; file and line are filled in per entry."""
        return Origin(
            plugin=self.name,
            distribution=self.distribution,
            version=self.version,
            source="entry point",
            module=self.value.partition(":")[0],
            path=self.path,
        )


def normalize(name: str) -> str:
    """Return a name for comparison: trimmed, lower case, runs of ``-``, ``_`` and ``.`` equal (as PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def discover(found: Iterable[Distribution] | None = None) -> list[Discovered]:
    """Return the installed plugins sorted by distribution and name, whatever order the file system gives.

    A distribution that is installed twice counts once: the first on ``sys.path`` is the one that Python would import.
    """
    plugins: list[Discovered] = []
    seen: set[str] = set()
    for distribution in distributions() if found is None else found:
        text = _read(distribution, "entry_points.txt")
        if ENTRY_POINT_GROUP not in text:
            continue
        name, version = _identity(distribution)
        if name is not None:
            if normalize(name) in seen:
                continue
            seen.add(normalize(name))
        path = _editable_path(distribution)
        plugins += [
            Discovered(name=plugin, value=value, distribution=name, version=version, path=path)
            for plugin, value in _entries(distribution, name)
        ]
    return sorted(dict.fromkeys(plugins), key=_order)


def _order(plugin: Discovered) -> tuple[str, str, str]:
    return normalize(plugin.distribution or ""), normalize(plugin.name), plugin.value


def _entries(distribution: Distribution, owner: str | None) -> list[tuple[str, str]]:
    """Return name and value of each entry of the group; a file that cannot be parsed is one entry without a value."""
    try:
        entries = [entry for entry in distribution.entry_points if entry.group == ENTRY_POINT_GROUP]
    except (TypeError, ValueError):
        return [(normalize(owner or "unknown"), "")]
    return [(entry.name, _value(entry)) for entry in entries]


def _value(entry: EntryPoint) -> str:
    """Return ``module:attribute`` without the spaces and the extras that may stand around it."""
    parts = entry.pattern.match(entry.value)
    return f"{parts['module']}:{parts['attr']}" if parts and parts["attr"] else entry.value


def _identity(distribution: Distribution) -> tuple[str | None, str | None]:
    """Return name and version, each None where the metadata are missing or damaged."""
    try:
        metadata: Any = distribution.metadata
    except (OSError, TypeError, UnicodeDecodeError):
        return None, None
    if metadata is None:
        return None, None
    return metadata.get("Name"), metadata.get("Version")


def _editable_path(distribution: Distribution) -> str | None:
    text = _read(distribution, "direct_url.json")
    try:
        record = json.loads(text)
    except ValueError:
        return None
    install = record.get("dir_info") if isinstance(record, dict) else None
    if not isinstance(install, dict) or not install.get("editable"):
        return None
    return unquote(urlsplit(str(record.get("url", ""))).path) or None


def _read(distribution: Distribution, name: str) -> str:
    """Return a file of the metadata, empty when it is missing or unreadable."""
    try:
        return distribution.read_text(name) or ""
    except (OSError, UnicodeDecodeError):
        return ""
