"""Keys that stand elsewhere in a configuration and belong to the section of an engine's plugin.

A plugin declares them with its section: ``parallelism`` at the root is a key of the engine, for example. They are moved
before anything is checked, so that both spellings give one and the same configuration.
"""

from __future__ import annotations

from typing import Any

from plugrl.config.tree import Tree, dotted
from plugrl.config.yaml_source import KeyPath
from plugrl.errors import ConfigError
from plugrl.registry import registry_of

_FIRST = "actor"
"""The component that the keys are meant for; the others of a run take them over unless they have their own."""


def move_section_keys(tree: Tree) -> None:
    """Move keys to where the engines' plugins keep them.

    Raises:
        ConfigError: a key is given under both names with different values.
    """
    moved: set[KeyPath] = set()
    for source, target, owner in _declared():
        given = tree.leaves(source)
        for path, value, origin in given:
            if any(path[: len(known)] == known and known != source for known in moved if len(known) > len(source)):
                continue
            _put(tree, (owner, *target, *path[len(source) :]), value, origin, source_key=path, first=owner == _FIRST)
        if given:
            moved.add(source)
    for source in moved:
        tree.remove(source)


def _put(tree: Tree, path: KeyPath, value: Any, origin: str, *, source_key: KeyPath, first: bool) -> None:
    if value is None:
        return  # As if it had not been given: the default of the key stays.
    if not first:
        tree.fill(path, value, origin)
        return
    if tree.has(path) and not tree.is_default(path) and tree.find(path) != value:
        raise ConfigError(
            f"{dotted(path)} is given twice with different values: {tree.find(path)!r} ({tree.origin(path)}) and, as "
            f"{dotted(source_key)}, {value!r} ({origin})"
        )
    tree.insert(path, value, origin)


def _declared() -> list[tuple[KeyPath, KeyPath, str]]:
    """Return (key that may be given, its path below the owner, owner), the longest keys first, once each."""
    engines = registry_of("engine")
    found: dict[tuple[KeyPath, KeyPath, str], None] = {}
    for key in engines.keys():
        for section in engines.entry(key).meta.get("sections", ()):
            for source, target in getattr(section, "aliases", ()):
                for owner in section.owners:
                    path = tuple(source.replace("{owner}", owner).split("."))
                    found[path, tuple(target.split(".")), owner] = None
    return sorted(found, key=lambda item: (-len(item[0]), item))
