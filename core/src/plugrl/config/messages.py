"""Turn the errors of pydantic into one readable message: key, what was given, what is allowed, where it stands."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from plugrl.config.aliases import HINTS
from plugrl.config.tree import DEFAULT, Tree, dotted
from plugrl.config.yaml_source import KeyPath
from plugrl.errors import ConfigError, nearest

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "dict": "a mapping of keys",
    "tuple": "a list",
    "list": "a list",
    "model": "a section with keys",
    "finite": "a finite number",
    "none": "null",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def config_error(
    error: ValidationError,
    schema: type[BaseModel],
    tree: Tree,
    owners: Mapping[KeyPath, str],
    section: KeyPath = (),
) -> ConfigError:
    """Return one ConfigError that has a line for each key that is wrong.

    ``owners`` names the plugin of a section; ``section`` is where ``schema`` stands in the tree.
    """
    allowed: dict[KeyPath, list[str]] = {}
    for item in error.errors(include_url=False):
        path = _key_path((*section, *item["loc"]), tree)
        allowed.setdefault(path, []).append(
            _unknown(path, schema, owners, section) if item["type"] == "extra_forbidden" else _allowed(item)
        )
    lines = []
    for path, texts in allowed.items():
        origin = tree.origin(path)
        if origin == DEFAULT and tree.origins.get(path) == DEFAULT and len(allowed) > 1:
            continue  # it follows another key, which is reported itself
        where = f" ({origin})" if origin and origin != DEFAULT else ""
        if texts[0].startswith("unknown key"):
            lines.append(f"{dotted(path)}: {texts[0]}{where}")
            continue
        expected = " or ".join(dict.fromkeys(texts))
        given = _short(tree.find(path)) if tree.has(path) else "nothing"
        lines.append(f"{dotted(path)}: must be {expected}, not {given}{_suggestion(error, path, tree, section)}{where}")
    return ConfigError("\n".join(lines))


def _key_path(location: tuple[int | str, ...], tree: Tree) -> KeyPath:
    """Drop what pydantic adds to a location (branches of a union, indices into a list)."""
    path: KeyPath = ()
    for part in location:
        if not isinstance(part, str) or not tree.has((*path, part)):
            break
        path = (*path, part)
    return path or tuple(str(part) for part in location)


def _allowed(item: Any) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "literal_error":
        return "one of " + context["expected"].replace("'", "").replace(" or ", ", ")
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{words} {context[key]}"
    if kind == "string_pattern_mismatch":
        return f"a text of the form {context['pattern']}"
    if kind == "missing":
        return "given"
    return _EXPECTED.get(kind.split("_")[0], item["msg"].lower())


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _suggestion(error: ValidationError, path: KeyPath, tree: Tree, section: KeyPath) -> str:
    """Name the literal nearest to what was given."""
    given = tree.find(path)
    for item in error.errors(include_url=False):
        here = _key_path((*section, *item["loc"]), tree) == path
        if here and item["type"] == "literal_error" and isinstance(given, str):
            choices = [part.strip("' ") for part in item["ctx"]["expected"].replace(" or ", ",").split(",")]
            found = nearest(given, choices)
            return f"; did you mean {found}?" if found else ""
    return ""


def _unknown(path: KeyPath, schema: type[BaseModel], owners: Mapping[KeyPath, str], root: KeyPath) -> str:
    """Say that a key is unknown, whose section it is in, and which key is nearest."""
    parent = path[:-1]
    if path in HINTS:
        return f"unknown key; {HINTS[path]}"
    section = section_at(schema, parent[len(root) :])
    keys = [] if section is None else list(section.model_fields)
    owner = next((owners[parent[:n]] for n in range(len(parent), 0, -1) if parent[:n] in owners), None)
    text = f"unknown key of {owner}'s section" if owner else "unknown key"
    found = nearest(path[-1], keys)
    if found:
        return f"{text}; did you mean {dotted((*parent, found))}?"
    elsewhere = [dotted(other) for other in key_paths(schema, root) if other[-1] == path[-1]]
    if elsewhere:
        return f"{text}; did you mean {elsewhere[0]}?"
    return f"{text}; known here: {', '.join(sorted(keys)) or '(nothing)'}"


def section_at(schema: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the schema of the section at ``path``, None where the path leads to no section."""
    section: type[BaseModel] | None = schema
    for key in path:
        if section is None or key not in section.model_fields:
            return None
        section = section_of(section.model_fields[key].annotation)
    return section


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in a field's annotation, also within a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((found for part in typing.get_args(annotation) if (found := section_of(part))), None)
    return None


def key_paths(schema: type[BaseModel], prefix: KeyPath = ()) -> list[KeyPath]:
    """Return the paths of all keys of a schema, sections included, depth first."""
    paths: list[KeyPath] = []
    for name, info in schema.model_fields.items():
        paths.append((*prefix, name))
        section = section_of(info.annotation)
        if section is not None:
            paths.extend(key_paths(section, (*prefix, name)))
    return paths
