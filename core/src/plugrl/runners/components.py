"""Launching the components of a run on their devices."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from plugrl.config.schema import ModelConfig, OptimConfig, RunConfig
from plugrl.errors import ConfigError, one_of
from plugrl.platforms import PlatformBase
from plugrl.platforms.devices import groups_per_device
from plugrl.rollouts.registry import get_rollout
from plugrl.runtime import PlacementError, RaySession, WorkerGroup, wait_all
from plugrl.runtime.placement import ComponentPlacement, Node, Placement, place
from plugrl.workers.groups import RolloutGroup, TrainingGroup
from plugrl.workers.training import EngineSpec, engine_type_of

logger = logging.getLogger(__name__)

TRAINING_WORKER = "plugrl.workers.training:TrainingWorker"
SUPERVISED_WORKER = "plugrl.workers.supervised:SupervisedWorker"
ROLLOUT_WORKER = "plugrl.workers.rollout:RolloutWorker"

Component = Literal["actor", "rollout", "ref", "critic"]


@dataclass
class Components:
    """The running components; those that the run does not need are None."""

    rollout: RolloutGroup | None = None
    actor: TrainingGroup | None = None
    ref: TrainingGroup | None = None
    critic: TrainingGroup | None = None

    @property
    def devices(self) -> dict[str, tuple[int, ...]]:
        """The device of each rank, by component."""
        groups = {"rollout": self.rollout, "ref": self.ref, "critic": self.critic, "actor": self.actor}
        return {name: group.group.devices for name, group in groups.items() if group is not None}

    @property
    def num_devices(self) -> int:
        """Distinct devices that the components use."""
        return len({device for ranks in self.devices.values() for device in ranks})

    def close(self) -> None:
        """End all workers; their names may be used again."""
        for group in (self.rollout, self.actor, self.ref, self.critic):
            if group is not None:
                group.close()


def rl_components(config: RunConfig) -> tuple[Component, ...]:
    """Return the components that reinforcement learning with this configuration needs."""
    needed: list[Component] = ["actor", "rollout"]
    if config.uses_reference and not config.reference_is_actor:
        needed.append("ref")
    if config.uses_critic:
        needed.append("critic")
    return tuple(needed)


def placement(
    config: RunConfig, needed: Sequence[str], nodes: int | Sequence[Node]
) -> dict[str, tuple[int, ...]]:
    """Return the device of each rank by component, as :func:`place_components`."""
    placed = place_components(config, needed, nodes)
    return {name: component.one_device_each for name, component in placed.components.items()}


def place_components(config: RunConfig, needed: Sequence[str], nodes: int | Sequence[Node]) -> Placement:
    """Return where each component runs on ``nodes``; a number stands for one node with so many devices.

    Without a word in ``cluster.component_placement`` the actor takes ``trainer.n_gpus_per_node`` devices of each node
    (one if that is unset), and the others share the actor's. Components of a configuration that this run does not
    need may be placed all the same.

    Raises:
        PlacementError: every mistake in ``cluster.component_placement`` and ``cluster.node_groups``.
    """
    given = config.cluster.component_placement
    count = (config.trainer.n_gpus_per_node or 1) * config.trainer.nnodes
    actor: object = f"0-{count - 1}"
    for key, value in given.items():
        if "actor" in [name.strip() for name in str(key).split(",")]:
            actor = value
    names = ("actor", "rollout", "env") if config.is_embodied else ("actor", "rollout", "ref", "critic")
    defaults = {name: actor for name in names}
    found = [Node(devices=nodes)] if isinstance(nodes, int) else nodes
    placed = place(config.cluster, defaults, found, one_device=tuple(defaults))
    return Placement(placed.layout, {name: placed.components[name] for name in needed})


@contextmanager
def explaining_shortage(session: RaySession) -> Iterator[None]:
    """Add the table of the session's nodes to the error of a placement that wants more devices than they have."""
    try:
        yield
    except PlacementError as error:
        if not error.wanted or not session.platform.ray_resource_name():
            raise
        *others, (path, code, message) = error.errors
        table = session.shortage(error.wanted)
        raise PlacementError([*others, (path, code, f"{message}\n{table}")], error.wanted) from error


def check_sharing(devices: Mapping[str, Sequence[int]], platform: PlatformBase) -> None:
    """Raise ConfigError when more components stand on a device than the platform lets share one (rule DV-3)."""
    for device in sorted({device for ranks in devices.values() for device in ranks}):
        sharing = [name for name, ranks in devices.items() if device in ranks]
        if len(sharing) > groups_per_device(platform, len(sharing)):
            raise ConfigError(
                f"cluster.component_placement: {one_of(sharing)} are all placed on device {device}, but a process owns "
                f"a {platform.device_name} device alone. Give each component its own devices."
            )


def launch(
    session: RaySession,
    config: RunConfig,
    needed: tuple[Component, ...],
    *,
    total_steps: int,
    optim: OptimConfig | None = None,
    actor_worker: str = TRAINING_WORKER,
) -> Components:
    """Start the needed components together and wait until all are ready.

    ``total_steps`` is the length of the learning-rate schedules; ``optim`` replaces the actor's optimizer settings,
    ``actor_worker`` the class of its workers.
    """
    with explaining_shortage(session):
        placed = place_components(config, needed, session.layout.nodes).components
    check_sharing({name: component.one_device_each for name, component in placed.items()}, session.platform)
    groups: dict[str, WorkerGroup] = {}
    try:
        for name in needed:
            worker = actor_worker if name == "actor" else TRAINING_WORKER
            groups[name] = _start(session, config, name, placed, total_steps, optim, worker)
        wait_all([group.ready for group in groups.values()], config.cluster.start_timeout_s)
        rollout = _rollout(groups["rollout"], config) if "rollout" in groups else None
    except BaseException:
        for group in groups.values():
            group.close(graceful=False)
        raise
    timeout = config.cluster.step_timeout_s
    training = {name: TrainingGroup(group, timeout) for name, group in groups.items() if name != "rollout"}
    return Components(
        rollout=rollout, actor=training.get("actor"), ref=training.get("ref"), critic=training.get("critic")
    )


def _rollout(group: WorkerGroup, config: RunConfig) -> RolloutGroup:
    """Return the handle of the rollout, whose ranks were seen to generate with one version of one engine."""
    rollout = RolloutGroup(
        group, config.cluster.step_timeout_s, config.rollout.update_weights_bucket_megabytes, config.weight_sync,
        ranks_per_engine=get_rollout(config.rollout.name).ranks_per_engine(config.rollout),
    )  # fmt: skip
    engine = rollout.check_engines()
    if engine:
        logger.info("The rollout generates with %s.", engine)
    return rollout


def _start(
    session: RaySession,
    config: RunConfig,
    name: Component,
    placed: Mapping[str, ComponentPlacement],
    total_steps: int,
    optim: OptimConfig | None,
    training_worker: str,
) -> WorkerGroup:
    own = set(placed[name].one_device_each)
    shares = any(own & set(component.one_device_each) for other, component in placed.items() if other != name)
    if name == "rollout":
        return WorkerGroup(
            session, ROLLOUT_WORKER, name=name, placement=placed[name],
            args=(config.model.without_adapter(), config.rollout),
            kwargs={"shares_device": shares}, env=session.platform.rollout_env_vars(),
        )  # fmt: skip
    spec = engine_spec(config, name, total_steps, optim, shares)
    args = (spec, config) if training_worker == SUPERVISED_WORKER else (spec,)
    return WorkerGroup(session, training_worker, name=name, placement=placed[name], args=args)


def engine_spec(
    config: RunConfig, name: Component, total_steps: int, optim: OptimConfig | None, shares_device: bool
) -> EngineSpec:
    """Return what the workers of a component build; arguments as those of :func:`launch`."""
    if name == "critic":
        model: ModelConfig = config.critic.model or config.model
        return EngineSpec(
            engine_type="value_model", section=config.critic, model=model, optim=config.critic.optim,
            total_steps=total_steps, seed=config.trainer.seed, allocator_settings=config.cluster.allocator_settings,
            shares_device=shares_device,
        )  # fmt: skip
    section = config.actor if name == "actor" else config.ref
    return EngineSpec(
        engine_type=engine_type_of(name, config.model),
        section=section,
        model=config.model,
        optim=(optim or config.actor.optim) if name == "actor" else None,
        total_steps=total_steps,
        seed=config.trainer.seed,
        allocator_settings=config.cluster.allocator_settings,
        shares_device=shares_device,
    )
