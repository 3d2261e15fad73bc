"""Does a version of an engine have what a backend uses of it? Read from its source, without importing or installing it.

``python -m plugrl_rollout_openai.surface plugrl_rollout_vllm.uses WHEEL`` says so of a wheel, or of a folder that holds
the package. What is used stands in a table of :class:`Use`; what a version has is recorded as JSON.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

Kind = Literal["call", "fields", "values", "route"]


@dataclass(frozen=True)
class Use:
    """One thing of an engine that a backend uses.

    target: ``module:Class.method`` of a call, ``module:Class`` of its fields, ``module:NAME`` of a tuple of texts, or
    ``module:METHOD /path`` of a route. names: the arguments, fields or values that must be there.
    """

    kind: Kind
    target: str
    names: tuple[str, ...] = ()


Facts = dict[str, list[str] | None]
"""By target: what there is, None where the target is missing. Arguments as in a signature: ``name=`` has a default, a
single star stands before those that are given by name alone, ``**name`` takes any."""


class Source(ABC):
    """The Python files of one or several packages."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module | None] = {}

    @abstractmethod
    def read(self, path: str) -> str | None:
        """Return the text of ``package/module.py``, None where there is none."""

    def tree(self, module: str) -> ast.Module | None:
        """Return the parsed module, None where there is none."""
        if module not in self._trees:
            base = module.replace(".", "/")
            text = self.read(f"{base}.py") or self.read(f"{base}/__init__.py")
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]


class Wheel(Source):
    """A wheel, as downloaded."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = zipfile.ZipFile(path)
        self._names = frozenset(self._file.namelist())

    def read(self, path: str) -> str | None:
        """Read from the archive."""
        return self._file.read(path).decode() if path in self._names else None

    def close(self) -> None:
        """Close the archive."""
        self._file.close()


class Folder(Source):
    """Where packages are installed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def read(self, path: str) -> str | None:
        """Read the file."""
        file = self._path / path
        return file.read_text() if file.is_file() else None


# ----------------------------------------------------------------------------------------------------------- the record
def record(uses: Sequence[Use], source: Source) -> Facts:
    """Return what the source has of each target."""
    found = {}
    for use in uses:
        module, _, name = use.target.partition(":")
        if use.kind == "route":
            found[use.target] = _route(source, module, name)
        elif use.kind == "call":
            found[use.target] = _signature(source, module, name)
        elif use.kind == "fields":
            found[use.target] = _fields(source, module, name)
        else:
            found[use.target] = _values(source, module, name)
    return found


def problems(uses: Sequence[Use], facts: Facts) -> list[str]:
    """Say what of the uses a version does not have; empty when it has all."""
    told = []
    for use in uses:
        have = facts.get(use.target)
        if have is None:
            told.append(f"{use.target} is missing")
            continue
        names = {entry.rstrip("=").lstrip("*") for entry in have}
        anything = use.kind == "call" and any(entry.startswith("**") for entry in have)
        lacking = [name for name in use.names if name not in names and not anything]
        if lacking:
            told.append(f"{use.target} has no {', '.join(lacking)}")
        if use.kind == "call":
            told += _unmet(use, have)
    return told


def _unmet(use: Use, have: Sequence[str]) -> Iterator[str]:
    """Arguments that must be given and are not."""
    for entry in have:
        plain = not entry.startswith("*") and not entry.endswith("=")
        if plain and entry not in ("self", "cls") and entry not in use.names:
            yield f"{use.target} wants {entry}"


# ------------------------------------------------------------------------------------------------------ reading sources
_Found = tuple[str, ast.AST]


def _find(source: Source, module: str, name: str) -> _Found | None:
    """Return where a name of a module is defined, followed through imports, and the definition."""
    tree = source.tree(module)
    for node in _statements(tree) if tree else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    origin = _absolute(source, module, node)
                    return _find(source, origin, alias.name)
    return None


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those within conditions and attempts too."""
    for node in getattr(tree, "body", ()):
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node)
            yield from _statements(ast.Module(node.orelse, []))


def _absolute(source: Source, module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = source.read(f"{module.replace('.', '/')}/__init__.py") is not None
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _signature(source: Source, module: str, name: str) -> list[str] | None:
    """Return the arguments of ``function``, ``Class.method`` or ``Class``, those of a base where it has none itself."""
    owner, _, method = name.partition(".")
    found = _find(source, module, owner)
    if found is None:
        return None
    if isinstance(found[1], ast.ClassDef):
        member = _member(source, *found, method or "__init__")
        if member is None and not method:
            return ["self", *(f"{field}=" for field in _fields(source, module, name) or [])]
        return None if member is None else _arguments(member)
    return _arguments(found[1]) if isinstance(found[1], ast.FunctionDef | ast.AsyncFunctionDef) else None


def _member(source: Source, module: str, node: ast.AST, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    assert isinstance(node, ast.ClassDef)
    for entry in node.body:
        if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef) and entry.name == name:
            return entry
    for where, base in _bases(source, module, node):
        found = _member(source, where, base, name)
        if found is not None:
            return found
    return None


def _bases(source: Source, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        found = _find(source, module, name.id) if isinstance(name, ast.Name) else None
        if found is not None and isinstance(found[1], ast.ClassDef):
            yield found[0], found[1]


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    first = len(plain) - len(given.defaults)
    told = [argument.arg + ("=" if index >= first else "") for index, argument in enumerate(plain)]
    if given.vararg or given.kwonlyargs:
        told.append(f"*{given.vararg.arg if given.vararg else ''}")
    told += [
        argument.arg + ("" if default is None else "=")
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return told + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def _fields(source: Source, module: str, name: str) -> list[str] | None:
    """Return the annotated or assigned names of a class and its bases."""
    found = _find(source, module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return None
    origin, node = found[0], found[1]
    names: list[str] = []
    for where, base in _bases(source, origin, node):
        names += _fields(source, where, base.name) or []
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            names.append(entry.target.id)
        elif isinstance(entry, ast.Assign):
            names += [target.id for target in entry.targets if isinstance(target, ast.Name)]
    return list(dict.fromkeys(names))


def _values(source: Source, module: str, name: str) -> list[str] | None:
    found = _find(source, module, name)
    value = getattr(found[1], "value", None) if found else None
    if value is None:
        return None
    return [node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _route(source: Source, module: str, name: str) -> list[str] | None:
    """Return the arguments of the function behind a route such as ``POST /pause``."""
    method, _, path = name.partition(" ")
    tree = source.tree(module)
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.args:
                first = mark.args[0]
                same = isinstance(first, ast.Constant) and first.value == path
                if same and method in _methods(mark):
                    return _arguments(node)
    return None


def _methods(mark: ast.Call) -> list[str]:
    assert isinstance(mark.func, ast.Attribute)
    if mark.func.attr != "api_route":
        return [mark.func.attr.upper()]
    values = [keyword.value for keyword in mark.keywords if keyword.arg == "methods"]
    return [str(node.value) for value in values for node in ast.walk(value) if isinstance(node, ast.Constant)]


# ------------------------------------------------------------------------------------------------------------------ use
def open_source(path: Path) -> Source:
    """Return a wheel, or a folder of packages."""
    return Folder(path) if path.is_dir() else Wheel(path)


def main(arguments: Sequence[str]) -> int:
    """Print the problems, and with ``--record`` what there is; returns 1 where something is missing."""
    names = [argument for argument in arguments if not argument.startswith("-")]
    if len(names) != 2:
        print("usage: python -m plugrl_rollout_openai.surface MODULE_WITH_USES WHEEL_OR_FOLDER [--record]")
        return 2
    uses: tuple[Use, ...] = import_module(names[0]).USES
    facts: Any = record(uses, open_source(Path(names[1])))
    if "--record" in arguments:
        print(json.dumps(facts, indent=1))
        return 0
    found = problems(uses, facts)
    print("\n".join(found) if found else f"All {len(uses)} uses are there.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
