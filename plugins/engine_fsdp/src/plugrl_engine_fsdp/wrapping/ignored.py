"""Modules that sharding leaves alone, by a pattern over paths or by class."""

from __future__ import annotations

import re
from collections.abc import Iterable

from plugrl.errors import ConfigError, nearest, one_of
from plugrl_engine_fsdp.wrapping.selectors import ModuleTree


def ignored_paths(tree: ModuleTree, pattern: str | None, classes: Iterable[str] | str | None) -> frozenset[str]:
    """Return the paths that ``pattern`` matches as a whole and those of modules of one of ``classes``.

    Raises ConfigError for a pattern or a class that matches nothing.
    """
    found: set[str] = set()
    if pattern is not None:
        matched = [path for path in tree.modules if path and re.fullmatch(pattern, path)]
        if not matched:
            raise ConfigError(
                f"fsdp_config.ignored_modules: {pattern!r} matches no module; the whole path must match, so begin with "
                f".* where it stands deeper. There are: {one_of(path for path in tree.modules if path)}"
            )
        found.update(matched)
    for name in [classes] if isinstance(classes, str) else classes or ():
        paths = tree.by_class(name)
        if not paths:
            hint = nearest(name, tree.class_names)
            raise ConfigError(
                f"fsdp_config.ignored_module_classes: the model has no module of class {name!r}"
                + (f"; did you mean {hint!r}?" if hint else ".")
                + f" It has: {one_of(tree.class_names)}"
            )
        found.update(paths)
    return frozenset(found)
