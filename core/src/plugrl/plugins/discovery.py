"""Which plugins are installed: metadata only, nothing is imported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import Any

from plugrl.plugins.manifest import ENTRY_POINT_GROUP
from plugrl.provenance import Origin


@dataclass(frozen=True, kw_only=True)
class Discovered:
    """One entry point of the group.

    ``name`` is the plugin's name, ``value`` where its manifest is (``module:attribute``). ``distribution`` and
    ``version`` are None when the metadata do not tell. ``path`` is the source folder of an editable install.
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
            Discovered(name=entry.name, value=entry.value, distribution=name, version=version, path=path)
            for entry in distribution.entry_points
            if entry.group == ENTRY_POINT_GROUP
        ]
    return sorted(dict.fromkeys(plugins), key=_order)


def _order(plugin: Discovered) -> tuple[str, str, str]:
    return normalize(plugin.distribution or ""), normalize(plugin.name), plugin.value


def _identity(distribution: Distribution) -> tuple[str | None, str | None]:
    """Return name and version, each None where the metadata are missing or damaged."""
    metadata: Any = distribution.metadata
    if metadata is None:
        return None, None
    return metadata.get("Name"), metadata.get("Version")


def _editable_path(distribution: Distribution) -> str | None:
    text = _read(distribution, "direct_url.json")
    try:
        record = json.loads(text) if text else {}
    except ValueError:
        return None
    if not record.get("dir_info", {}).get("editable"):
        return None
    return str(record.get("url", "")).removeprefix("file://") or None


def _read(distribution: Distribution, name: str) -> str:
    """Return a file of the metadata, empty when it is missing or unreadable."""
    try:
        return distribution.read_text(name) or ""
    except (OSError, UnicodeDecodeError):
        return ""
