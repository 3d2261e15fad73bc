"""Read YAML safely, by the rules of YAML 1.2 for plain values, and keep the line of every key.

PyYAML follows YAML 1.1, where `1e-6` is a text, `no` is false and `1:30` is 90. A configuration of learning rates
wants the newer rules: only true, false and null are words, and every spelling of a number is one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from plugrl.errors import ConfigError

KeyPath = tuple[str, ...]
"""The keys that lead to a value."""


class _CoreLoader(yaml.SafeLoader):
    """A safe loader that resolves plain scalars by the core schema of YAML 1.2."""


class CoreDumper(yaml.SafeDumper):
    """A safe dumper that quotes exactly the texts that :func:`parse_value` would take for something else."""


_CoreLoader.yaml_implicit_resolvers = {}
CoreDumper.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN"),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"^(?:<<)$", "<"),
):
    for _kind in (_CoreLoader, CoreDumper):
        _kind.add_implicit_resolver(_tag, re.compile(_pattern), [*_first, ""])


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    """Decimal, also with leading zeros, which YAML 1.1 takes for octal."""
    return int(loader.construct_scalar(node))


_CoreLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse_value(text: str) -> Any:
    """Return the value of ``text`` as YAML; raises ConfigError when it is none."""
    try:
        return yaml.load(text, Loader=_CoreLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is not a YAML value: {_problem(error)}") from error


def read_document(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Return the mapping in the file and the line of each of its keys; raises ConfigError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration {path} is not UTF-8 text: {error.reason}") from error
    loader = _CoreLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"The configuration {path} must be a mapping of keys, not a list or a single value")
        lines: dict[KeyPath, int] = {}
        _collect_lines(path, node, (), lines)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {_problem(error)}") from error
    finally:
        loader.dispose()


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).splitlines()[0]


def _collect_lines(path: Path, node: yaml.MappingNode, prefix: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Note the line of each key, refusing keys that stand twice in one mapping or are no text."""
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{path}, line {line}: a key must be a plain text")
        key_path = (*prefix, str(key_node.value))
        if key_path in lines:
            name = ".".join(key_path)
            raise ConfigError(f"{name} stands twice in {path}: lines {lines[key_path]} and {line}")
        lines[key_path] = line
        if isinstance(value_node, yaml.MappingNode):
            _collect_lines(path, value_node, key_path, lines)
