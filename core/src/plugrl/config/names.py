"""Check that every part the configuration names is registered, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plugrl.config.checks import Task
from plugrl.config.schema import RunConfig
from plugrl.config.sections import find_named
from plugrl.config.yaml_source import KeyPath
from plugrl.errors import EngineNotFound, nearest, one_of
from plugrl.plugins.ledger import failures_for
from plugrl.registry import registry_of


def check_names(config: RunConfig, task: Task = "train") -> None:
    """Raise NotRegistered, starting with the key, for the first name that no registry has.

    The text lists the candidates, the nearest one, and the plugins that failed and would provide it.
    """
    for kind, name, key in _names(config, task):
        find_named(kind, name, key)
    for owner, model_type in _engines(config, task):
        _check_engine(owner, getattr(config, owner).strategy, registry_of("model").entry(model_type).meta)


def _names(config: RunConfig, task: Task) -> Iterator[tuple[str, str, KeyPath]]:
    if config.platform is not None:
        yield "platform", config.platform, ("platform",)
    embodied = config.is_embodied and task != "sft"
    if not embodied:
        yield "dataset", config.data.source, ("data", "source")
    if config.reward.name is not None:
        yield "reward", config.reward.name, ("reward", "name")
    for name in config.trainer.logger:
        yield "logger", name, ("trainer", "logger")
    if task in ("train", "sft") and config.weight_sync.type != "auto":
        yield "weight_syncer", config.weight_sync.type, ("weight_sync", "type")
    if task == "train":
        prefix = "embodied/" if embodied else ""
        yield "advantage", prefix + config.algorithm.adv_estimator, ("algorithm", "adv_estimator")
        yield "loss", config.actor.policy_loss.loss_mode, ("actor", "policy_loss", "loss_mode")


def _engines(config: RunConfig, task: Task) -> Iterator[tuple[str, str]]:
    """Yield the sections that need an engine, with the model type that it trains."""
    if task in ("train", "sft"):
        yield "actor", config.model.model_type
    if task == "train" and config.uses_reference:
        yield "ref", config.model.model_type
    if task == "train" and config.uses_critic and config.critic.model is not None:
        yield "critic", config.critic.model.model_type


def _check_engine(owner: str, backend: str, model_meta: Mapping[str, Any]) -> None:
    """Raise EngineNotFound unless some device has an engine of this backend for the category of model."""
    category = f"{model_meta.get('category', 'language')}_model"
    engines = registry_of("engine")
    backends = {str(key[1]) for key in engines.keys() if key[0] == category}
    name = backend.strip().lower()
    if name in backends:
        return
    found = nearest(name, backends)
    text = f'{owner}.strategy: No engine "{backend}" for a {category}.'
    text += f' Did you mean "{found}"?' if found else ""
    reasons = failures_for("engine", (category, name))
    raise EngineNotFound(" ".join([text, f"Known: {one_of(backends)}.", *reasons]))
