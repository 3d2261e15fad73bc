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


_UNREADABLE = (yaml.YAMLError, RecursionError, ValueError, KeyError, AttributeError)
"""What PyYAML raises: beside its own errors those of Python, for too deep a nesting, ``!!int x`` and the like."""


def parse_value(text: str) -> Any:
    """Return the value of ``text`` as YAML; raises ConfigError when it is none."""
    try:
        value, _ = _read("the value", text)
    except ConfigError:
        raise
    except _UNREADABLE as error:
        raise ConfigError(f"{_shortened(text)} is not a YAML value: {_problem(error)}") from error
    if value is None and text.lstrip().startswith("#"):
        raise ConfigError(f"{text!r} is a comment in YAML")
    return value


def read_document(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Return the mapping in the file and the line of each of its keys; raises ConfigError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The configuration {path} is not UTF-8 text: {error.reason}") from error
    except ValueError as error:  # a name that no file can have
        raise ConfigError(f"Cannot read the configuration {str(path)!r}: {error}") from error
    try:
        document, lines = _read(path, text)
    except ConfigError:
        raise
    except _UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not valid YAML: {_problem(error)}") from error
    if document is not None and not isinstance(document, dict):
        raise ConfigError(f"The configuration {path} must be a mapping of keys, not a list or a single value")
    return document or {}, lines


def _read(source: Path | str, text: str) -> tuple[Any, dict[KeyPath, int]]:
    """Return the value of a text and the line of each key; raises ConfigError for a key that stands twice."""
    loader = _CoreLoader(text)
    lines: dict[KeyPath, int] = {}
    try:
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _collect_lines_below(source, node, (), lines)
        return loader.construct_document(node), lines
    finally:
        loader.dispose()


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or holds an alias of itself"
    text = getattr(error, "problem", None) or getattr(error, "reason", None) or error
    return (str(text).splitlines() or [type(error).__name__])[0]


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def _collect_lines(path: Path | str, node: yaml.MappingNode, prefix: KeyPath, lines: dict[KeyPath, int]) -> None:
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
        _collect_lines_below(path, value_node, key_path, lines)


def _collect_lines_below(path: Path | str, node: yaml.Node, prefix: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        _collect_lines(path, node, prefix, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect_lines_below(path, item, (*prefix, str(index)), lines)
