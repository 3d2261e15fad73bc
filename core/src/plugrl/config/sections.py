"""What plugins add to the schema: sections of their engines, keys of their models, options of their rollouts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from plugrl.config.compose import compose
from plugrl.config.schema import (
    ActorConfig,
    AlgorithmConfig,
    CriticConfig,
    DemosEnvConfig,
    EnvSection,
    EvalEnvConfig,
    ModelConfig,
    RefConfig,
    RolloutConfig,
    RunConfig,
    Section,
    TrainEnvConfig,
)
from plugrl.config.schema.model import OpenModelConfig
from plugrl.config.schema.run import wants_critic
from plugrl.config.tree import Tree, dotted
from plugrl.config.yaml_source import KeyPath
from plugrl.errors import STOPS, ConfigError, DuplicateRegistration, NotRegistered, PluginError, one_line
from plugrl.registry import RegistryEntry, import_target, registry_of

logger = logging.getLogger(__name__)

_OWNERS: dict[str, type[Section]] = {"actor": ActorConfig, "critic": CriticConfig, "ref": RefConfig}
"""The sections to which an engine may add its own."""

_ENV_PARAMS = "plugrl.envs.config:EnvParams"
"""The settings of an environment that brings no schema."""


@dataclass
class PluginSchema:
    """The schema of a run with the installed plugins, and the plugin that owns each added section."""

    schema: type[RunConfig]
    owners: dict[KeyPath, str] = field(default_factory=dict)


def plugin_schema(tree: Tree) -> PluginSchema:
    """Return the schema for the plugins that are loaded and the model and rollout that ``tree`` names.

    Completes ``critic.model`` in ``tree`` from ``model``. Raises NotRegistered, starting with the key, for an unknown
    model or rollout.
    """
    owners: dict[KeyPath, str] = {}
    if isinstance(tree.find(("env", "train")), dict):
        tree.fill(("critic", "enable"), False)  # the policy itself has the head for values
    replaced: list[tuple[str, Any]] = [("env", _env_section(tree, owners))]
    model = _model_schema(tree, ("model", "model_type"), owners)
    replaced.append(("model", model))
    added = _engine_sections(tree, owners)
    critic_model = None if isinstance(tree.find(("env", "train")), dict) else _critic_model(tree, owners)
    if critic_model is not None:
        added["critic"].append(("model", critic_model))
    for name, base in _OWNERS.items():
        replaced.append((name, compose(base, tuple(added[name]))))
    options = _rollout_options(tree, owners)
    replaced.append(("rollout", compose(RolloutConfig, (("options", options),))))
    for name, _ in replaced:
        # Checked as if it were written, so that an error of a plugin's schema names the key.
        tree.fill((name,), {})
    schema = compose(RunConfig, tuple(replaced))
    assert issubclass(schema, RunConfig)
    return PluginSchema(schema, owners)


def find_named(kind: str, name: Any, key: KeyPath) -> RegistryEntry:
    """Return the entry of a name that stands at ``key``; the error of an unknown one starts with that key."""
    try:
        return registry_of(kind).entry(name)
    except NotRegistered as error:
        raise type(error)(f"{dotted(key)}: {error}") from error


def _text(tree: Tree, key: KeyPath, default: str) -> str:
    """Return the text at ``key``, the default where there is none. Raises ConfigError for what is no text."""
    section, value = tree.find(key[:-1]), tree.find(key)
    if section is not None and not isinstance(section, dict):
        where = tree.origin(key[:-1])
        raise ConfigError(f"{dotted(key[:-1])}: must be a section with keys, not {section!r} ({where})")
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{dotted(key)}: must be a text, not {value!r} ({tree.origin(key)})")
    return default if value is None else value


def _model_schema(tree: Tree, key: KeyPath, owners: dict[KeyPath, str]) -> type[Section]:
    entry = find_named("model", _text(tree, key, ModelConfig.model_fields["model_type"].default), key)
    schema = _load(entry.meta.get("schema"), ModelConfig, entry.origin.owner)
    if schema is None:
        return ModelConfig if entry.meta.get("category") != "embodied" else OpenModelConfig
    owners[key[:-1]] = entry.origin.owner
    return schema


def _env_section(tree: Tree, owners: dict[KeyPath, str]) -> type[Section]:
    """Give `env.train.init_params` and its like the schema of the environment that stands beside it."""
    splits: list[tuple[str, Any]] = []
    bases: dict[str, type[Section]] = {"train": TrainEnvConfig, "eval": EvalEnvConfig, "demos": DemosEnvConfig}
    for name, base in bases.items():
        key: KeyPath = ("env", name, "env_type")
        if not isinstance(tree.find(key[:-1]), dict) or tree.find(key) is None:
            splits.append((name, base))
            continue
        entry = find_named("env", _text(tree, key, ""), key)
        schema = _load(entry.meta.get("schema") or _ENV_PARAMS, Section, entry.origin.owner)
        owners[(*key[:-1], "init_params")] = entry.origin.owner
        tree.fill((*key[:-1], "init_params"), {})
        splits.append((name, compose(base, (("init_params", schema),))))
    return compose(EnvSection, tuple(splits)) if any(kind not in bases.values() for _, kind in splits) else EnvSection


def _critic_model(tree: Tree, owners: dict[KeyPath, str]) -> type[Section] | None:
    """Complete `critic.model` by the keys of `model` that it does not set, where a critic is trained."""
    default = AlgorithmConfig.model_fields["adv_estimator"].default
    estimator = _text(tree, ("algorithm", "adv_estimator"), default)
    if not wants_critic(tree.find(("critic", "enable")), estimator) and not tree.find(("critic", "model")):
        return None
    policy_type = _text(tree, ("model", "model_type"), ModelConfig.model_fields["model_type"].default)
    tree.fill(("critic", "model", "model_type"), f"{policy_type}_value")
    schema = _model_schema(tree, ("critic", "model", "model_type"), owners)
    policy = tree.find(("model",))
    for key, value in policy.items() if isinstance(policy, dict) else ():
        if key in schema.model_fields:
            tree.fill(("critic", "model", key), copy.deepcopy(value))
    return schema


def _engine_sections(tree: Tree, owners: dict[KeyPath, str]) -> dict[str, list[tuple[str, Any]]]:
    """Collect the sections of all engines; one key with two schemas is an error that names both plugins.

    A section that cannot be had is an error where it or its engine is used, else a warning: the other engines run.
    """
    added: dict[str, list[tuple[str, Any]]] = {name: [] for name in _OWNERS}
    seen: dict[KeyPath, tuple[str, str]] = {}
    unusable: dict[str, None] = {}  # texts, once each: a section has several owners
    for section, backend, plugin in _declared_sections():
        for owner in section.owners:
            path = (owner, section.key)
            if path in seen:
                if seen[path][0] != section.schema:
                    raise DuplicateRegistration(
                        f"{dotted(path)} is claimed by {seen[path][1]} and {plugin}. Disable one of them."
                    )
                continue
            try:
                if section.key in _OWNERS[owner].model_fields:
                    raise PluginError(f"{plugin} adds {section.key} to {owner}, which is a key of the core.")
                schema = _load(section.schema, BaseModel, plugin)
            except PluginError as error:
                strategy = _text(tree, (owner, "strategy"), _OWNERS[owner].model_fields["strategy"].default)
                if strategy == backend or (tree.has(path) and section.key not in _OWNERS[owner].model_fields):
                    raise
                unusable[f"{error} The engine {backend} cannot be used."] = None
                continue
            seen[path] = (section.schema, plugin)
            owners[path] = plugin
            added[owner].append((section.key, schema))
            tree.fill(path, {})
    for text in unusable:
        logger.warning("%s", text)
    return added


def _declared_sections() -> Iterator[tuple[Any, str, str]]:
    """Yield each section with the backend of the engine that declares it, and its plugin."""
    engines = registry_of("engine")
    for key in engines.keys():
        entry = engines.entry(key)
        for section in entry.meta.get("sections", ()):
            yield section, key[1], entry.origin.owner


def _rollout_options(tree: Tree, owners: dict[KeyPath, str]) -> Any:
    key = ("rollout", "name")
    entry = find_named("rollout", _text(tree, key, RolloutConfig.model_fields["name"].default), key)
    schema = _load(entry.meta.get("schema"), BaseModel, entry.origin.owner)
    if schema is None:
        return dict[str, Any]
    owners[("rollout", "options")] = entry.origin.owner
    return schema


def _load(target: str | type | None, base: type, plugin: str) -> Any:
    """Return the schema behind a target; raises PluginError when it fails to load or is no subclass of ``base``."""
    if target is None:
        return None
    try:
        schema = import_target(target) if isinstance(target, str) else target
    except STOPS:
        raise
    except BaseException as error:  # Third-party code.
        raise PluginError(f"The schema {target} of {plugin} failed to load: {one_line(error)}.") from error
    if not (isinstance(schema, type) and issubclass(schema, base)):
        raise PluginError(f"The schema {target} of {plugin} must be a subclass of {base.__module__}.{base.__name__}.")
    return schema
