"""What is checked before anything is written or started, so that a mistake costs seconds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from plugrl.algorithms import check_options
from plugrl.algorithms.registry import ADVANTAGE_KEYWORDS, AGGREGATION_KEYWORDS, LOSS_KEYWORDS
from plugrl.checkpoints.shared import check_probe, place_probe, remove_probe
from plugrl.config.schema import OptimConfig, RunConfig
from plugrl.engines import EngineRegistry
from plugrl.errors import CheckpointError, ConfigError, UserError
from plugrl.models.registry import MODELS
from plugrl.platforms import get_platform
from plugrl.platforms.visible import visible_count
from plugrl.plugins import hooks
from plugrl.rollouts.registry import get_rollout
from plugrl.runners.components import Component, check_sharing, placement
from plugrl.runtime import RaySession
from plugrl.tracking.tracker import check_loggers
from plugrl.workers.training import engine_section, engine_type_of

logger = logging.getLogger(__name__)

Task = Literal["train", "sft", "eval"]


def preflight(config: RunConfig, task: Task, needed: tuple[Component, ...], ranks: int | None = None) -> None:
    """Check options, loggers, the plugins' own opinions and devices.

    ``ranks`` is the number of processes that a launcher started in place of Ray: it has placed them.

    Raises:
        ConfigError: an option that estimator or loss do not have, a device that is not there, or what a plugin refuses.
        MissingDependency: a logger's package is not installed.
    """
    if task == "train":
        _check_algorithms(config)
    if task != "eval":
        check_loggers(config.trainer.logger)
    for diagnostic in hooks.diagnose(config):
        logger.warning("%s", diagnostic.message)
    _check_devices(config, task, needed, ranks)


def _check_algorithms(config: RunConfig) -> None:
    algorithm, policy_loss = config.algorithm, config.actor.policy_loss
    given = ADVANTAGE_KEYWORDS | {"old_log_probs", "sum_pi_squared", "reward_components"}
    _check_options("advantage", algorithm.adv_estimator, algorithm.options, given, "algorithm.options")
    given = LOSS_KEYWORDS | AGGREGATION_KEYWORDS
    _check_options("loss", policy_loss.loss_mode, policy_loss.options, given, "actor.policy_loss.options")


def _check_options(
    kind: Literal["advantage", "loss"], name: str, options: Mapping[str, Any], given: frozenset[str], key: str
) -> None:
    for option in options:
        if option in given:
            raise ConfigError(f"{key}.{option}: is given by the run itself and cannot be an option.")
    try:
        check_options(kind, name, options)
    except UserError as error:
        raise type(error)(f"{key}: {error}") from error


def _check_devices(config: RunConfig, task: Task, needed: tuple[Component, ...], ranks: int | None) -> None:
    """Check the placement against this machine; a cluster that is joined is known only after joining."""
    if ranks is not None:
        get_platform(config.platform)
        check_engines(config, {"actor": ranks}, config.sft.optim)
        return
    platform = get_platform(config.platform, allow_unavailable=config.cluster.ray_address is not None)
    if config.cluster.ray_address is None:
        devices = placement(config, needed, visible_count(platform))
        check_sharing(devices, platform)
        check_rows(config, task, devices)


def check_parts(config: RunConfig, needed: tuple[Component, ...]) -> None:
    """Load engines, rollout and models here first: one that is broken must not cost the start of all workers.

    Left out where a cluster is joined: its nodes may have what the driver has not.

    Raises:
        UserError: (EngineNotFound, PluginError, MissingDependency) a part is not there for this platform or is broken.
    """
    if config.cluster.ray_address is not None:
        return
    for name in needed:
        if name == "rollout":
            get_rollout(config.rollout.name)
            MODELS.get(config.model.model_type)
            continue
        model = (config.critic.model if name == "critic" else None) or config.model
        MODELS.get(model.model_type)
        kind = engine_type_of(name, model)
        EngineRegistry.get_engine_cls(kind, getattr(config, name).strategy)


def check_placed_engines(config: RunConfig, task: Task, needed: tuple[Component, ...]) -> None:
    """Do as :func:`check_engines` for the ranks that the placement gives; a cluster that is joined is not known yet."""
    if config.cluster.ray_address is None:
        devices = placement(config, needed, visible_count(get_platform(config.platform)))
        optim = config.sft.optim if task == "sft" else None
        check_engines(config, {name: len(placed) for name, placed in devices.items()}, optim)


def check_engines(config: RunConfig, ranks: Mapping[str, int], optim: OptimConfig | None = None) -> None:
    """Ask the engine of every component what it cannot do of what is asked for with so many ranks.

    ``optim`` stands for the actor's optimizer settings where the task has its own.

    Raises:
        ConfigError: every objection, one a line.
    """
    objections = []
    for name, count in ranks.items():
        if name == "rollout":
            continue
        section = getattr(config, name)
        kind = engine_type_of(name, config.model)
        engine = EngineRegistry.get_engine_cls(kind, section.strategy)
        settings = optim if optim is not None and name == "actor" else getattr(section, "optim", None)
        given = engine_section(section, kind), settings, getattr(section, "checkpoint", None)
        objections += [f"{name}: {text}" for text in engine.problems(*given, count)]
    if objections:
        raise ConfigError("\n".join(objections))


def check_rows(config: RunConfig, task: Task, devices: Mapping[str, Sequence[int]]) -> None:
    """Raise ConfigError when some rank gets no row of a batch; the arithmetic of the run checks the actor's."""
    samples = config.rollout.n
    rows = {
        "ref": ("data.train_batch_size x rollout.n", config.data.train_batch_size * samples),
        "critic": ("critic.ppo_mini_batch_size x rollout.n", config.critic.ppo_mini_batch_size * samples),
    }
    if task == "sft" or config.sft.before_rl:
        rows["actor"] = ("sft.train_batch_size", config.sft.train_batch_size)
    for name, (key, count) in rows.items():
        ranks = len(devices.get(name, ()))
        if ranks > count:
            raise ConfigError(
                f"cluster.component_placement: {ranks} ranks of {name} cannot share {count} rows ({key})."
            )


def check_shared_folder(session: RaySession, folder: Path) -> None:
    """Check that every node sees ``folder`` as the driver does (rule CK-4); does nothing on a single node.

    Raises:
        CheckpointError: a node does not, so that its part of a checkpoint would be lost.
    """
    if len(session.nodes) < 2:
        return
    probe = place_probe(folder)
    try:
        problems = session.call_on_nodes(_probe_problem, str(probe))
    finally:
        remove_probe(probe)
    found = [problem for problem in problems if problem is not None]
    if found:
        raise CheckpointError("\n".join(found))


def _probe_problem(node: str, probe: str) -> str | None:
    try:
        check_probe(probe, node)
    except CheckpointError as error:
        return str(error)
    return None
