"""``"module:attribute"`` strings: the lazy half of a registration."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from importlib.machinery import ModuleSpec
from typing import Any

from plugrl.errors import STOPS, PluginError, nearest, one_line


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
    return _find(name)[1] == ""


def _find(module: str) -> tuple[ModuleSpec | None, str]:
    """Return the spec of a module and why there is none; its parents are imported, which may raise anything."""
    try:
        spec = importlib.util.find_spec(module)
    except STOPS:
        raise
    except BaseException as error:  # Foreign code at the top of a parent package.
        return None, f"{module} is not importable: {one_line(error)}"
    return spec, "" if spec else f"there is no module {module}"


def missing_in_source(target: str) -> str | None:
    """Say what is missing of a target, reading the module's source instead of importing it; None if all is there.

    A module that may define names at run time (``__getattr__``, a star import) or has no source is given the benefit of
    the doubt.
    """
    module, _, path = target.partition(":")
    spec, problem = _find(module)
    if spec is None:
        return problem
    if not spec.origin or not spec.origin.endswith(".py"):
        return None
    try:
        with open(spec.origin, "rb") as source:
            names = _top_level_names(ast.parse(source.read()))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{module} cannot be read: {one_line(error)}"
    name = path.partition(".")[0]
    return None if name in names or names & {"*", "__getattr__"} else f"{module} defines no {name}"


def _top_level_names(tree: ast.Module) -> set[str]:
    """Return every name bound outside functions and classes, also below ``if`` and ``try``."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return names
