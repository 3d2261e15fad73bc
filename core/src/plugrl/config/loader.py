"""`load_config`: file and overrides in, one checked and frozen configuration out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from plugrl.config.aliases import ENV_FOLLOWS, FOLLOWS
from plugrl.config.checks import Task, cross_problems
from plugrl.config.messages import config_error
from plugrl.config.names import check_names
from plugrl.config.overrides import parse_override
from plugrl.config.schema import PluginsConfig, RunConfig
from plugrl.config.section_aliases import move_section_keys
from plugrl.config.sections import plugin_schema
from plugrl.config.tree import DEFAULT, Tree
from plugrl.config.yaml_source import KeyPath, read_document
from plugrl.errors import ConfigError
from plugrl.plugins.discovery import normalize
from plugrl.registry import registry_of

_S = TypeVar("_S", bound=BaseModel)

_OWN_PATHS: tuple[KeyPath, ...] = (("trainer", "default_local_dir"), ("data", "train_files"), ("data", "val_files"))
_PERHAPS_PATHS: tuple[KeyPath, ...] = (
    ("model", "path"),
    ("model", "lora", "path"),
    ("critic", "model", "path"),
    ("trainer", "resume"),
)
"""Keys that hold a path, or a published name or a word: those that exist as a path are one."""


def load_config(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    task: Task = "train",
    plugin_options: Sequence[str] = (),
) -> RunConfig:
    """Read a YAML file, apply the overrides in order, load the plugins, and check everything.

    ``plugin_options`` are names that narrow the plugins for this run, ``name`` or ``no:name``. Relative paths become
    absolute. Raises ConfigError, whose text has one line for each key that is wrong, or NotRegistered for the first
    name that no plugin provides.
    """
    tree = read_tree(Path(path), overrides)
    narrow_plugins(tree, plugin_options)
    load_named_plugins(tree)
    move_section_keys(tree)
    if task in ("sft", "demos"):
        tree.fill(("critic", "enable"), False)  # the estimator's wish for one concerns reinforcement learning
    fill_defaults(tree)
    composed = plugin_schema(tree)
    config = validated(composed.schema, tree, composed.owners)
    check_names(config, task)
    problems = cross_problems(config, task)
    if problems:
        raise ConfigError("\n".join(_located(problem, tree) for problem in problems))
    return config


def _located(problem: str, tree: Tree) -> str:
    """Add where the key at the start of a message was given."""
    key = tuple(problem.partition(":")[0].split("."))
    origin = tree.origins.get(key, "")
    return problem if origin in ("", DEFAULT) else f"{problem} ({origin})"


def load_schema(path: str | os.PathLike[str] | None = None) -> type[RunConfig]:
    """Return the schema with what the installed plugins add, for the model and the rollout that a file names.

    Without a file, a default model or rollout that is not installed is left out.
    """
    tree = read_tree(Path(path)) if path is not None else Tree()
    load_named_plugins(tree)
    move_section_keys(tree)
    if path is None:
        for kind, key in (("model", ("model", "model_type")), ("rollout", ("rollout", "name"))):
            section = getattr(RunConfig(), key[0])
            if getattr(section, key[1]) not in registry_of(kind):
                return RunConfig
    return plugin_schema(tree).schema


def validated(schema: type[_S], tree: Tree, owners: Mapping[KeyPath, str], section: KeyPath = ()) -> _S:
    """Return the values at ``section`` as an instance of ``schema``; raises ConfigError."""
    try:
        return schema.model_validate(tree.find(section) if section else tree.values)
    except ValidationError as error:
        raise config_error(error, schema, tree, owners, section) from None


def narrow_plugins(tree: Tree, options: Sequence[str]) -> None:
    """Add the plugins named for one run to `plugins.allow` and `plugins.deny`; restrictions add up."""
    wanted = [option for option in options if not option.startswith("no:")]
    unwanted = [option[3:] for option in options if option.startswith("no:")]
    if not options:
        return
    given = _plugins_section(tree)
    if wanted:
        known = given.allow and {normalize(name) for name in given.allow}
        allow = wanted if known is None else [name for name in wanted if normalize(name) in known]
        tree.replace(("plugins", "allow"), allow, "command line")
    if unwanted:
        tree.replace(("plugins", "deny"), [*given.deny, *unwanted], "command line")


def _plugins_section(tree: Tree) -> PluginsConfig:
    return validated(PluginsConfig, tree, {}, ("plugins",)) if tree.has(("plugins",)) else PluginsConfig()


def load_named_plugins(tree: Tree) -> None:
    """Load the plugins that the configuration admits. Raises PluginError when a required one is missing."""
    from plugrl.plugins import PluginSettings, load_plugins

    wanted = _plugins_section(tree)
    load_plugins(PluginSettings(allow=wanted.allow, deny=wanted.deny, required=wanted.required))


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
    for split in ("eval", "demos"):
        _fill_environment(tree, split)
    if not tree.find(("trainer", "default_local_dir")):
        project = tree.find(("trainer", "project_name")) or "plugrl"
        experiment = tree.find(("trainer", "experiment_name")) or "run"
        _set(tree, ("trainer", "default_local_dir"), os.path.join("outputs", str(project), str(experiment)))
    for path in _OWN_PATHS:
        _set(tree, path, _absolute(tree.find(path)))
    _fill_demonstrations(tree)
    for path in _PERHAPS_PATHS:
        value = tree.find(path)
        if isinstance(value, str) and os.path.exists(os.path.expanduser(value)):
            _set(tree, path, _absolute(value))


def _fill_environment(tree: Tree, split: str) -> None:
    """Let `env.eval` or `env.demos` follow `env.train`; its own settings join those of the same environment."""
    train, other = tree.find(("env", "train")), tree.find(("env", split))
    if not isinstance(train, dict) or not isinstance(other, dict):
        return
    for name in ENV_FOLLOWS:
        if name in train:
            tree.fill(("env", split, name), train[name])
    if other.get("env_type") == train.get("env_type"):
        own: KeyPath = ("env", "train", "init_params")
        for path, value, origin in tree.leaves(own):
            tree.fill(("env", split, "init_params", *path[len(own) :]), value, origin)


def _fill_demonstrations(tree: Tree) -> None:
    """Say where demonstrations lie, and let supervised training read them where `demos` is given and no other data."""
    folder = tree.find(("trainer", "default_local_dir"))
    given = isinstance(tree.find(("demos",)), dict)
    if not tree.find(("demos", "path")) and isinstance(folder, str):
        _set(tree, ("demos", "path"), f"{folder.rstrip(os.sep)}-demos")
    _set(tree, ("demos", "path"), _absolute(tree.find(("demos", "path"))))
    if given and not tree.has(("data", "source")):
        tree.fill(("data", "source"), "lerobot")
    if given and tree.find(("data", "source")) == "lerobot":
        tree.fill(("data", "source_options", "root"), tree.find(("demos", "path")))


def _set(tree: Tree, path: KeyPath, value: Any) -> None:
    if value is None:
        return
    if tree.has(path):
        tree.insert(path, value, tree.origin(path))
    else:
        tree.fill(path, value)


def _absolute(value: Any) -> Any:
    if isinstance(value, str) and value:
        return os.path.abspath(os.path.expanduser(value))
    return [_absolute(item) for item in value] if isinstance(value, list) else value
