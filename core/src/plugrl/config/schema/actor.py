"""`actor:`, `critic:` and `ref:`: what is trained, what judges, and what the policy is kept near to.

Engine plugins add sections of their own, such as `fsdp_config`, to all three.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from plugrl.config.schema.base import Section
from plugrl.config.schema.model import ModelConfig
from plugrl.config.schema.optim import CheckpointConfig, OptimConfig

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""How the losses of tokens become one number."""

KlKind = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3",
    "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+",
]  # fmt: skip
"""Estimator of the KL divergence; `+` has the value of the kind and the gradient of k2."""


class PolicyLossConfig(Section):
    """Which policy loss is used."""

    loss_mode: str = "vanilla"
    """Registered name of the loss."""

    options: dict[str, Any] = {}
    """Options of that loss."""


class ActorConfig(Section):
    """Training of the policy."""

    strategy: str = "fsdp2"
    """Backend of the training engine."""

    optim: OptimConfig = OptimConfig()
    """Optimizer and schedule."""

    ppo_mini_batch_size: int = Field(256, ge=1)
    """Prompts in one optimizer step; each has `rollout.n` responses."""

    ppo_micro_batch_size_per_gpu: int | None = Field(None, ge=1)
    """Responses in one forward pass of a rank; null takes the whole share of the rank."""

    use_dynamic_bsz: bool = False
    """Fill micro-batches up to a number of tokens instead of responses."""

    ppo_max_token_len_per_gpu: int = Field(16384, ge=1)
    """Tokens in one micro-batch of a rank, with `use_dynamic_bsz`."""

    ppo_epochs: int = Field(1, ge=1)
    """Passes over each batch."""

    clip_ratio: float = Field(0.2, ge=0)
    """Clipping range of the probability ratio, below and above."""

    clip_ratio_low: float | None = Field(None, ge=0)
    """Range below 1; null takes `clip_ratio`."""

    clip_ratio_high: float | None = Field(None, ge=0)
    """Range above 1; null takes `clip_ratio`."""

    clip_ratio_c: float | None = Field(3.0, gt=1)
    """Bound of the ratio where the advantage is negative (dual clip); null switches it off."""

    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""

    use_kl_loss: bool = False
    """Add the divergence from the reference to the loss."""

    kl_loss_coef: float = Field(0.001, ge=0)
    """Weight of that divergence."""

    kl_loss_type: KlKind = "low_var_kl"
    """Estimator of that divergence."""

    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of tokens become one number."""

    loss_scale_factor: float | None = Field(None, gt=0)
    """Divisor of `seq-mean-token-sum-norm`; null takes `data.max_response_length`."""

    policy_loss: PolicyLossConfig = PolicyLossConfig()
    """Which policy loss is used."""

    use_rollout_log_probs: bool | Literal["auto"] = "auto"
    """Take the rollout's log-probabilities as the old ones instead of recomputing them; `auto` does so where the two
    are known to agree."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved and loaded."""


class CriticConfig(Section):
    """Training of the value model."""

    enable: bool | None = None
    """Train a critic; null does so where the advantage estimator needs values."""

    strategy: str = "fsdp2"
    """Backend of the training engine; follows the actor unless given."""

    model: ModelConfig | None = None
    """Keys that differ from `model`; the model type is `<model_type>_value` unless given."""

    optim: OptimConfig = OptimConfig(lr=1e-5)
    """Optimizer and schedule."""

    ppo_mini_batch_size: int = Field(256, ge=1)
    """Prompts in one optimizer step; follows the actor unless given."""

    ppo_micro_batch_size_per_gpu: int | None = Field(None, ge=1)
    """Responses in one forward pass of a rank; follows the actor unless given."""

    use_dynamic_bsz: bool = False
    """Fill micro-batches by tokens; follows the actor unless given."""

    ppo_max_token_len_per_gpu: int = Field(16384, ge=1)
    """Tokens in one micro-batch of a rank; follows the actor unless given."""

    ppo_epochs: int = Field(1, ge=1)
    """Passes over each batch; follows the actor unless given."""

    cliprange_value: float = Field(0.5, ge=0)
    """How far a value may move from the one at sampling."""

    loss_agg_mode: Aggregation = "token-mean"
    """How the losses of tokens become one number; follows the actor unless given."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved and loaded."""


class RefConfig(Section):
    """Log-probabilities of the frozen policy that training started from."""

    strategy: str = "fsdp2"
    """Backend of the engine; follows the actor unless given."""

    log_prob_micro_batch_size_per_gpu: int | None = Field(None, ge=1)
    """Responses in one forward pass of a rank; follows the actor unless given."""

    log_prob_use_dynamic_bsz: bool = False
    """Fill micro-batches by tokens; follows the actor unless given."""

    log_prob_max_token_len_per_gpu: int = Field(16384, ge=1)
    """Tokens in one micro-batch of a rank; follows the actor unless given."""
