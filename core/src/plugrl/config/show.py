"""The configuration as text: resolved values as YAML, and every key with its type, default and meaning."""

from __future__ import annotations

import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from plugrl.config.messages import section_of
from plugrl.config.yaml_source import CoreDumper, KeyPath
from plugrl.errors import ConfigError, nearest


@dataclass(frozen=True)
class KeyDescription:
    """One key of the schema."""

    path: KeyPath
    type: str
    default: Any
    description: str
    is_section: bool


def to_yaml(config: BaseModel) -> str:
    """Return the values as YAML that loads as the same configuration."""
    return dump_yaml(config.model_dump(mode="json"))


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(value))


def _represent_list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.SequenceNode:
    plain = all(not isinstance(item, dict | list) for item in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)


CoreDumper.add_representer(float, _represent_float)
CoreDumper.add_representer(list, _represent_list)


def dump_yaml(values: Any) -> str:
    """Return plain values as YAML in their own order."""
    text: str = yaml.dump(values, Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def describe_keys(schema: type[BaseModel], prefix: KeyPath = ()) -> Iterator[KeyDescription]:
    """Yield every key of a schema, each section before what it holds."""
    for name, info in schema.model_fields.items():
        section = section_of(info.annotation)
        path = (*prefix, name)
        default = None if section else info.get_default(call_default_factory=True, validated_data={})
        text = " ".join((info.description or "").split())
        yield KeyDescription(path, _type_name(info.annotation), default, text, section is not None)
        if section is not None:
            yield from describe_keys(section, path)


_NAMES = {"str": "text", "int": "whole number", "float": "number", "bool": "true/false", "NoneType": "null"}


def _type_name(annotation: Any) -> str:
    """Return an annotation in words: `whole number | null`, `list of text`, `grpo | gae`."""
    kind, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if kind is Annotated:
        return _type_name(parts[0])
    if kind is typing.Literal:
        return " | ".join(str(part) for part in parts)
    if kind in (typing.Union, types.UnionType):
        return " | ".join(_type_name(part) for part in parts)
    if kind in (tuple, list):
        inner = dict.fromkeys(_type_name(part) for part in parts if part is not Ellipsis)
        return "list of " + ", ".join(inner)
    if kind is dict or annotation is dict:
        return "mapping"
    if annotation is Any:
        return "any"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _NAMES.get(getattr(annotation, "__name__", ""), str(annotation))


def schema_text(schema: type[BaseModel], section: str | None = None) -> str:
    """Return every key of a schema, or those below ``section``, as lines of text.

    Raises ConfigError, naming the nearest, when there is no such key.
    """
    keys = list(describe_keys(schema))
    wanted = tuple(section.split(".")) if section else ()
    chosen = [key for key in keys if key.path[: len(wanted)] == wanted]
    if not chosen:
        found = nearest(section or "", [".".join(key.path) for key in keys])
        raise ConfigError(f"{section}: no such key" + (f"; did you mean {found}?" if found else ""))
    return "\n".join(line for key in chosen for line in _key_lines(key)) + "\n"


def _key_lines(key: KeyDescription) -> list[str]:
    name = ".".join(key.path)
    if key.is_section:
        return ["", f"{name}:  {key.description}".rstrip()]
    if key.default is PydanticUndefined:
        default = "(required)"
    else:
        default = dump_yaml(to_jsonable_python(key.default)).removesuffix("...\n").strip()
    head = f"  {name}: {default}   ({key.type})"
    return [head, *textwrap.wrap(key.description, width=100, initial_indent="      ", subsequent_indent="      ")]
