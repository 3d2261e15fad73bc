"""The configuration as text: resolved values as YAML, and every key with its type, default and meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from plugrl.config.messages import section_of
from plugrl.config.yaml_source import CoreDumper, KeyPath


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
        default = info.get_default(call_default_factory=True, validated_data={})
        text = " ".join((info.description or "").split())
        yield KeyDescription(path, _type_name(info.annotation), default, text, section is not None)
        if section is not None:
            yield from describe_keys(section, path)


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    text = re.sub(r"\b(?:typing|[a-z_]+(?:\.[a-z_]+)+)\.", "", str(annotation))
    return re.sub(r"Literal\[(.*?)\]", lambda match: match[1].replace("'", "").replace(", ", " | "), text)
