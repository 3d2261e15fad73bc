"""`load_config`: file and overrides in, one checked and frozen configuration out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from plugrl.config.aliases import FOLLOWS
from plugrl.config.messages import config_error
from plugrl.config.overrides import parse_override
from plugrl.config.schema import RunConfig
from plugrl.config.tree import DEFAULT, Tree
from plugrl.config.yaml_source import KeyPath, read_document

_OWN_PATHS: tuple[KeyPath, ...] = (("trainer", "default_local_dir"), ("data", "train_files"), ("data", "val_files"))
_PERHAPS_PATHS: tuple[KeyPath, ...] = (("model", "path"), ("critic", "model", "path"), ("trainer", "resume"))
"""Keys that hold a path, or a published name or a word: those that exist as a path are one."""


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file, apply the overrides in order, and check everything.

    Raises ConfigError, whose text has one line for each key that is wrong.
    """
    tree = read_tree(Path(path), overrides)
    fill_defaults(tree)
    schema, owners = RunConfig, dict[KeyPath, str]()
    try:
        return schema.model_validate(tree.values)
    except ValidationError as error:
        raise config_error(error, schema, tree, owners) from None


def read_tree(path: Path, overrides: Sequence[str] = ()) -> Tree:
    """Return the values of the file with the overrides applied, unchecked."""
    document, lines = read_document(path)
    tree = Tree()
    for key_path, value in _walk(document):
        line = lines.get(key_path)
        tree.insert(key_path, value, f"{path}, line {line}" if line else str(path), unique=True)
    for text in overrides:
        key_path, value = parse_override(text)
        tree.replace(key_path, value, "command line")
    return tree


def _walk(mapping: dict[str, Any], prefix: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Return the leaves in file order."""
    leaves: list[tuple[KeyPath, Any]] = []
    for key, value in mapping.items():
        path = (*prefix, str(key))
        leaves.extend(_walk(value, path) if isinstance(value, dict) and value else [(path, value)])
    return leaves


def fill_defaults(tree: Tree) -> None:
    """Give keys that follow another key its value, and make paths absolute, once and at the driver."""
    for target, source in FOLLOWS.items():
        if tree.has(source):
            tree.fill(target, tree.find(source))
    if not tree.find(("trainer", "default_local_dir")):
        project = tree.find(("trainer", "project_name")) or "plugrl"
        experiment = tree.find(("trainer", "experiment_name")) or "run"
        _set(tree, ("trainer", "default_local_dir"), os.path.join("outputs", str(project), str(experiment)))
    for path in _OWN_PATHS:
        _set(tree, path, _absolute(tree.find(path)))
    for path in _PERHAPS_PATHS:
        value = tree.find(path)
        if isinstance(value, str) and os.path.exists(os.path.expanduser(value)):
            _set(tree, path, _absolute(value))


def _set(tree: Tree, path: KeyPath, value: Any) -> None:
    if value is not None:
        tree.insert(path, value, tree.origin(path) if tree.has(path) else DEFAULT)


def _absolute(value: Any) -> Any:
    if isinstance(value, str) and value:
        return os.path.abspath(os.path.expanduser(value))
    return [_absolute(item) for item in value] if isinstance(value, list) else value
