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
    found: dict[KeyPath, list[Any]] = {}
    listed: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False):
        location = (*section, *item["loc"])
        path = _key_path(location, tree)
        if isinstance(tree.find(path), list | tuple) and isinstance(_part(location, len(path)), int):
            place = _place_in_list(location, path, tree, is_missing=item["type"] == "missing")
            listed.setdefault(place, []).append((path, item))
        else:
            found.setdefault(path, []).append(item)
    # What follows another key is reported there.
    given = {path: items for path, items in found.items() if not tree.is_default(path)} or found
    lines = [_line(path, items, schema, tree, owners, section) for path, items in given.items()]
    return ConfigError("\n".join(lines + [_line_in_list(place, items, tree) for place, items in listed.items()]))


def _part(location: tuple[int | str, ...], index: int) -> int | str | None:
    return location[index] if index < len(location) else None


def _place_in_list(location: tuple[int | str, ...], path: KeyPath, tree: Tree, *, is_missing: bool) -> str:
    """Return the path of a value inside a list, `cluster.node_groups[0].label`; names of branches of a union end it."""
    node, text = tree.find(path), dotted(path)
    for number, part in enumerate(location[len(path) :], start=len(path) + 1):
        if isinstance(part, int):
            text += f"[{part}]"
            node = node[part] if isinstance(node, list | tuple) and part < len(node) else None
        elif isinstance(node, Mapping) and (part in node or (is_missing and number == len(location))):
            text += f".{part}"
            node = node.get(part)
        else:
            break
    return text


def _line_in_list(place: str, items: list[Any], tree: Tree) -> str:
    """Return the line of a value inside a list; such a value has no origin of its own, but its list has one."""
    path, item = items[0]
    origin = tree.origin(path)
    where = f" ({origin})" if origin and origin != DEFAULT else ""
    if item["type"] == "missing":
        return f"{place}: must be given{where}"
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown key{where}"
    if item["type"] in ("value_error", "assertion_error"):
        return f"{place}: {item['ctx']['error']}{where}"
    expected = " or ".join(dict.fromkeys(_allowed(item) for _, item in items))
    return f"{place}: must be {expected}, not {_short(item['input'])}{where}"


def _line(
    path: KeyPath,
    items: list[Any],
    schema: type[BaseModel],
    tree: Tree,
    owners: Mapping[KeyPath, str],
    section: KeyPath,
) -> str:
    """Return the line of one key; several items are the branches of a union."""
    origin = tree.origin(path)
    where = f" ({origin})" if origin and origin != DEFAULT else ""
    kind = items[0]["type"]
    if kind == "extra_forbidden":
        return f"{dotted(path)}: {_unknown(path, schema, owners, section)}{where}"
    if kind in ("value_error", "assertion_error"):
        return f"{dotted(path)}: {items[0]['ctx']['error']}{where}"
    if kind == "missing":
        return f"{dotted(path)}: must be given{where}"
    expected = " or ".join(dict.fromkeys(_allowed(item) for item in items))
    given = tree.find(path)
    return f"{dotted(path)}: must be {expected}, not {_short(given)}{_suggestion(items, given)}{where}"


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
        return f"{words} {context[key]:g}"
    if kind == "string_pattern_mismatch":
        return f"a text of the form {context['pattern']}"
    return _EXPECTED.get(kind.split("_")[0], item["msg"].lower())


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _suggestion(items: list[Any], given: Any) -> str:
    """Name the literal nearest to what was given."""
    expected = [item["ctx"]["expected"] for item in items if item["type"] == "literal_error"]
    choices = [part.strip("' ") for text in expected for part in text.replace(" or ", ",").split(",")]
    found = nearest(given, choices) if isinstance(given, str) else None
    return f"; did you mean {found}?" if found else ""


def _unknown(path: KeyPath, schema: type[BaseModel], owners: Mapping[KeyPath, str], root: KeyPath) -> str:
    """Say that a key is unknown, whose section it is in, and which key is nearest."""
    parent = path[:-1]
    if path in HINTS:
        return f"unknown key; {HINTS[path]}"
    if "." in path[-1]:
        return "unknown key: in a file, write a section below its name, not with dots"
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
