"""Launching the components of a run in environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from plugrl.config.embodied_checks import Task, placed_problems
from plugrl.config.schema import RunConfig
from plugrl.errors import ConfigError
from plugrl.runners.components import check_sharing, engine_spec, explaining_shortage, place_components
from plugrl.runtime import RaySession, WorkerGroup, wait_all
from plugrl.runtime.placement import ComponentPlacement
from plugrl.workers.embodied.env_worker import Split
from plugrl.workers.embodied.groups import ActingGroup, EnvGroup, LearningGroup

ENV_WORKER = "plugrl.workers.embodied.env_worker:EnvWorker"
ACTING_WORKER = "plugrl.workers.embodied.acting:ActingWorker"
LEARNING_WORKER = "plugrl.workers.embodied.learning:LearningWorker"

EmbodiedComponent = Literal["env", "rollout", "actor"]

TRAINING: tuple[EmbodiedComponent, ...] = ("env", "rollout", "actor")
"""What training in environments needs."""

MEASURING: tuple[EmbodiedComponent, ...] = ("env", "rollout")
"""What an evaluation needs."""


@dataclass
class EmbodiedComponents:
    """The running components; an evaluation has no actor."""

    env: EnvGroup
    rollout: ActingGroup
    actor: LearningGroup | None = None

    @property
    def devices(self) -> dict[str, tuple[int, ...]]:
        """The device of each rank, by component."""
        found = {"env": self.env.group.devices, "rollout": self.rollout.group.devices}
        return found if self.actor is None else found | {"actor": self.actor.group.devices}

    def close(self) -> None:
        """End all workers."""
        for group in (self.env, self.rollout, self.actor):
            if group is not None:
                group.close()


def check_placed(config: RunConfig, task: Task, devices: Mapping[str, Sequence[int]]) -> None:
    """Raise ConfigError when scenes or rows cannot be shared out to the ranks that were placed."""
    problems = placed_problems(config, task, {name: len(placed) for name, placed in devices.items()})
    if problems:
        raise ConfigError("\n".join(problems))


def launch_embodied(
    session: RaySession,
    config: RunConfig,
    needed: tuple[EmbodiedComponent, ...] = TRAINING,
    *,
    total_steps: int = 1,
) -> EmbodiedComponents:
    """Start the needed components together and wait until all are ready.

    Raises:
        ConfigError: what does not fit the devices, or what an environment or the policy says of its settings.
    """
    with explaining_shortage(session):
        placed = place_components(config, needed, session.layout.nodes).components
    devices = {name: component.one_device_each for name, component in placed.items()}
    task: Task = "train" if "actor" in needed else "eval"
    check_sharing(devices, session.platform)
    check_placed(config, task, devices)
    groups: dict[str, WorkerGroup] = {}
    try:
        for name in needed:
            groups[name] = _start(session, config, name, placed, task, total_steps)
        wait_all([group.ready for group in groups.values()], config.cluster.start_timeout_s)
    except BaseException:
        for group in groups.values():
            group.close(graceful=False)
        raise
    timeout = config.cluster.step_timeout_s
    return EmbodiedComponents(
        env=EnvGroup(groups["env"], timeout),
        rollout=ActingGroup(
            groups["rollout"], timeout, config.rollout.update_weights_bucket_megabytes, config.weight_sync
        ),
        actor=LearningGroup(groups["actor"], timeout) if "actor" in groups else None,
    )


def _start(
    session: RaySession,
    config: RunConfig,
    name: EmbodiedComponent,
    placed: Mapping[str, ComponentPlacement],
    task: Task,
    total_steps: int,
) -> WorkerGroup:
    ranks = {other: len(component.one_device_each) for other, component in placed.items()}
    own = set(placed[name].one_device_each)
    shares = any(own & set(component.one_device_each) for other, component in placed.items() if other != name)
    if name == "env":
        splits: tuple[Split, ...] = ("train", "eval") if task == "train" else ("eval",)
        return WorkerGroup(
            session, ENV_WORKER, name=name, placement=placed[name], args=(config, splits, ranks["rollout"])
        )
    if name == "rollout":
        return WorkerGroup(
            session, ACTING_WORKER, name=name, placement=placed[name], args=(config, ranks["env"]),
            kwargs={"shares_device": shares}, env=session.platform.rollout_env_vars(),
        )  # fmt: skip
    spec = engine_spec(config, "actor", total_steps, None, shares)
    return WorkerGroup(session, LEARNING_WORKER, name=name, placement=placed[name], args=(spec,))
