"""`env:`: the environments that a policy is trained and measured in.

The section alone makes a run one of environments. ``init_params`` is checked by the schema that the environment brings.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plugrl.config.schema.base import Section

GIVEN_BY_THE_RUN = ("num_envs", "max_episode_steps", "auto_reset", "ignore_terminations")
"""Keys of an environment's own schema that the run fills in."""


class EnvConfig(Section):
    """Scenes of an environment, and how long they are acted in."""

    env_type: str
    """Registered name of the environment."""

    total_num_envs: int = Field(8, ge=1)
    """Scenes that run side by side, over all workers."""

    group_size: int = Field(1, ge=1)
    """Neighbouring scenes that begin alike: the group that estimators such as grpo compare."""

    max_episode_steps: int | None = Field(None, ge=1)
    """Actions after which an episode is cut off; null takes the environment's own limit."""

    max_steps_per_rollout_epoch: int | None = Field(None, ge=1)
    """Actions in each scene in one pass; null takes `max_episode_steps`, and in an evaluation goes on until all scenes
    have ended."""

    rollout_epoch: int = Field(1, ge=1)
    """Passes over the scenes in one step of training, or in one evaluation."""

    auto_reset: bool = True
    """Begin the next episode in a scene as soon as one ends. Otherwise the scene waits, and what would come after the
    end does not count."""

    ignore_terminations: bool = False
    """Go on after the task ended an episode, until the time runs out."""

    init_params: Any = {}
    """The environment's own settings, checked by the schema it brings."""

    @property
    def steps(self) -> int | None:
        """Actions in each scene in one pass, None where the environment alone knows."""
        return self.max_steps_per_rollout_epoch or self.max_episode_steps


class TrainEnvConfig(EnvConfig):
    """The environments that a policy learns in."""

    reset_each_epoch: bool = True
    """Begin new episodes in all scenes at each pass, from seeds that follow from `trainer.seed`, the step and the pass;
    a resumed run then continues exactly. false lets episodes go on from one pass to the next."""

    overlap_reset: bool = False
    """Begin the episodes of the next step while the policy is trained."""


class EvalEnvConfig(EnvConfig):
    """The environments that a policy is measured in. What is not given here is as under `env.train`."""

    auto_reset: bool = False
    """Begin the next episode in a scene as soon as one ends; otherwise each scene has one in a pass."""

    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of the first scene; the others follow it. Training never uses these."""

    videos: int = Field(0, ge=0)
    """Scenes of which each evaluation keeps a video."""

    blank_images: bool = False
    """Show grey images instead of what the cameras see: what a policy reaches then, it reaches without looking."""

    swap_instructions: bool = False
    """Give each scene the instruction of another: what a policy reaches then, it reaches without reading."""


class DemosEnvConfig(EnvConfig):
    """The environments that demonstrations are collected in. What is not given here is as under `env.train`."""

    auto_reset: bool = False
    """Has no effect: each episode begins from a seed of its own."""


class EnvSection(Section):
    """The environments of a run."""

    train: TrainEnvConfig | None = None
    """Where the policy learns."""

    eval: EvalEnvConfig | None = None
    """Where it is measured."""

    demos: DemosEnvConfig | None = None
    """Where demonstrations are collected; null is where it learns."""
