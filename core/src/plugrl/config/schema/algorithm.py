"""`algorithm:`: how rewards become advantages."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plugrl.config.schema.actor import KlKind
from plugrl.config.schema.base import Section

Level = Literal["action_level", "chunk_level"]
"""What counts as one step of a rollout: an action, or all actions that the policy gave at once."""


class KlControlConfig(Section):
    """The weight of the divergence in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """A constant weight, or one that steers towards `target_kl`."""

    kl_coef: float = Field(0.001, ge=0)
    """The weight, at the start."""

    horizon: int = Field(10000, ge=1)
    """Samples over which the adaptive weight moves."""

    target_kl: float = Field(0.1, gt=0)
    """Divergence the adaptive weight steers towards."""


class FilterGroupsConfig(Section):
    """Leaving out prompts that teach nothing. Source: DAPO, arXiv:2503.14476, section 3.2."""

    enable: bool = False
    """Leave prompts out of the policy update whose responses all have the same score: their advantages are 0."""


class AlgorithmConfig(Section):
    """How rewards become advantages."""

    adv_estimator: str = "gae"
    """Registered name of the advantage estimator."""

    gamma: float = Field(1.0, ge=0, le=1)
    """Discount per token."""

    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of GAE."""

    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's advantages by their standard deviation (GRPO)."""

    use_kl_in_reward: bool = False
    """Subtract the divergence from the reference from the reward."""

    kl_penalty: KlKind = "kl"
    """Estimator of that divergence."""

    kl_ctrl: KlControlConfig = KlControlConfig()
    """Weight of that divergence."""

    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Which prompts the policy learns from."""

    loss_type: Literal["actor", "actor_critic", "decoupled_actor_critic"] | None = None
    """Environments: what is minimised; null is actor_critic where the estimator is gae, else actor."""

    reward_type: Level = "action_level"
    """Environments: a step of the estimator is an action, or a whole chunk with its rewards summed."""

    logprob_type: Literal["token_level", "action_level", "chunk_level"] = "action_level"
    """Environments: the ratio is one of a single number of an action, of an action, or of a whole chunk."""

    entropy_type: Literal["token_level", "action_level", "chunk_level"] | None = None
    """Environments: the same for the entropy; null takes `logprob_type`."""

    bootstrap_type: Literal["standard", "always"] = "standard"
    """Environments: add the value of the last state where the time ran out, or at every end of an episode."""

    normalize_advantages: bool = True
    """Environments: bring the advantages of gae to mean 0 and deviation 1 over all scenes."""

    rewards_lower_bound: float | None = None
    """Environments, with `filter_groups`: smallest mean return of a group that is learned from."""

    rewards_upper_bound: float | None = None
    """Environments, with `filter_groups`: largest mean return of a group that is learned from."""

    huber_delta: float = Field(10.0, gt=0)
    """Environments: errors of values are squared below this, and grow linearly above."""

    clip_log_ratio_min: float | None = None
    """Environments: smallest logarithm of a ratio; null is no bound."""

    clip_log_ratio_max: float | None = None
    """Environments: largest logarithm of a ratio; null is no bound."""

    options: dict[str, Any] = {}
    """Further options of the estimator."""
