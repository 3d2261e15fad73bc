"""The raw configuration before it is checked: a tree of values, each of which knows where it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugrl.config.aliases import canonical
from plugrl.config.yaml_source import KeyPath
from plugrl.errors import ConfigError

DEFAULT = "default"
"""The origin of a value that was not given."""


def dotted(path: KeyPath) -> str:
    """Return the path as the user writes it."""
    return ".".join(path)


@dataclass
class Tree:
    """Values by key path, and the origin of each (`run.yaml, line 3` or `command line`)."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def insert(self, path: KeyPath, value: Any, origin: str, *, unique: bool = False) -> None:
        """Set one value at its canonical path, merging mappings.

        ``unique`` refuses a different value for a key that the same source has already given under another name.
        """
        for leaf, leaf_value in _leaves(path, value):
            target = canonical(leaf)
            if not target:
                if leaf_value not in ({}, None):
                    raise ConfigError(f"{dotted(leaf)}: must be a section with keys, not {leaf_value!r} ({origin})")
                continue
            known = self.find(target)
            if unique and target in self.origins and known != leaf_value:
                raise ConfigError(
                    f"{dotted(target)} is given twice with different values: "
                    f"{known!r} ({self.origins[target]}) and {leaf_value!r} ({origin})"
                )
            self._set(target, leaf_value, origin)

    def replace(self, path: KeyPath, value: Any, origin: str) -> None:
        """Set one value; a mapping replaces the mapping that was there."""
        target = canonical(path)
        if target:
            parent = self.find(target[:-1]) if len(target) > 1 else self.values
            if isinstance(parent, dict):
                parent.pop(target[-1], None)
            self.origins = {key: known for key, known in self.origins.items() if key[: len(target)] != target}
        self.insert(path, value, origin)
        if target:
            self.origins[target] = origin

    def find(self, path: KeyPath) -> Any:
        """Return the value at ``path``, None if there is none."""
        node: Any = self.values
        for key in path:
            if not isinstance(node, Mapping) or key not in node:
                return None
            node = node[key]
        return node

    def has(self, path: KeyPath) -> bool:
        """Whether a value was given at ``path``, null included."""
        parent = self.find(path[:-1])
        return not path or (isinstance(parent, Mapping) and path[-1] in parent)

    def leaves(self, path: KeyPath) -> list[tuple[KeyPath, Any, str]]:
        """Return (key path, value, origin) of everything given at or below ``path``; an empty mapping is a value."""
        if not self.has(path):
            return []
        return [(leaf, value, self.origin(leaf)) for leaf, value in _leaves(path, self.find(path))]

    def remove(self, path: KeyPath) -> None:
        """Take away the value at ``path``, and sections that are left empty by it."""
        while path and self.has(path):
            parent = self.find(path[:-1]) if len(path) > 1 else self.values
            del parent[path[-1]]
            self.origins = {key: known for key, known in self.origins.items() if key[: len(path)] != path}
            if parent:
                return
            path = path[:-1]

    def fill(self, path: KeyPath, value: Any, origin: str = DEFAULT) -> None:
        """Set a value that was not given; where a section is no mapping nothing is, which validation will refuse."""
        around = (self.find(path[:length]) for length in range(1, len(path)))
        if not self.has(path) and all(section is None or isinstance(section, dict) for section in around):
            self._set(path, value, origin)

    def is_default(self, path: KeyPath) -> bool:
        """Whether nothing at or below ``path`` was given."""
        below = {origin for key, origin in self.origins.items() if key[: len(path)] == path}
        return below <= {DEFAULT} and self.origin(path) in ("", DEFAULT)

    def origin(self, path: KeyPath) -> str:
        """Where the value at ``path``, or the nearest section around it, was given; empty if nowhere."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return ""

    def _set(self, path: KeyPath, value: Any, origin: str) -> None:
        node = self.values
        for depth, key in enumerate(path[:-1]):
            child = node.get(key)
            if child is None:
                child = node[key] = {}
            if not isinstance(child, dict):
                section = dotted(path[: depth + 1])
                raise ConfigError(f"{dotted(path)}: {section} is the value {child!r}, it has no keys ({origin})")
            node = child
        if value == {} and isinstance(node.get(path[-1]), dict):
            return
        node[path[-1]] = value
        self.origins[path] = origin


def _leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values below ``path``; an empty mapping is a value."""
    if isinstance(value, Mapping) and value:
        for key, child in value.items():
            yield from _leaves((*path, str(key)), child)
    else:
        yield path, dict(value) if isinstance(value, Mapping) else value
