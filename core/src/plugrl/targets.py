"""``"module:attribute"`` strings: the lazy half of a registration."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from plugrl.errors import PluginError, nearest


def import_target(target: str) -> Any:
    """Import ``"module:attribute"`` (the attribute may be dotted) and return the object.

    Raises:
        PluginError: the string is no target, or the module has no such attribute (the nearest one is named).
        Exception: whatever the import of the module raises.
    """
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise PluginError(f'"{target}" is no target: write "package.module:attribute".')
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            like = nearest(name, dir(found))
            hint = f" Did you mean {like}?" if like else ""
            raise PluginError(f'Module {module_name} has no attribute "{path}".{hint}') from error
    return found


def is_importable(name: str) -> bool:
    """Tell whether a module of that name could be imported, without importing it (its parents are)."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
