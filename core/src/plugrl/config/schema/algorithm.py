"""`algorithm:`: how rewards become advantages."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plugrl.config.schema.actor import KlKind
from plugrl.config.schema.base import Section


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

    options: dict[str, Any] = {}
    """Further options of the estimator."""
