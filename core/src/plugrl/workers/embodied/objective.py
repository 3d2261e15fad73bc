"""The loss of a policy that acts, as engines call it: configuration bound to :mod:`plugrl.algorithms.embodied`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from plugrl.algorithms.embodied import embodied_objective
from plugrl.algorithms.embodied.objective import SHARES
from plugrl.config.embodied_checks import loss_type_of
from plugrl.config.schema import RunConfig
from plugrl.engines.base import Batch, LossContext
from plugrl.metric import Metric

OWN_KEYS = ("prev_logprobs", "advantages", "returns", "prev_values", "response_mask", "mask_sums")
"""Keys of a batch that are no inputs of the policy."""


@dataclass(frozen=True, kw_only=True)
class EmbodiedObjective:
    """Policy loss, value loss and entropy bonus. A row is a chunk of C actions with D numbers in one scene.

    Batch keys: ``prev_logprobs`` [B, C, D], ``advantages`` and ``response_mask`` [B, C] (or [B, 1] with chunk-level
    rewards); with a value loss ``prev_values`` and ``returns`` in that shape; ``mask_sums`` when losses are normalised
    by the lengths of episodes.

    settings: keywords of :func:`plugrl.algorithms.embodied.embodied_objective` that do not depend on the batch.
    batch_rows: rows of a whole mini-batch, those included that do not count and were left out.
    """

    settings: Mapping[str, Any]
    learns_values: bool
    batch_rows: int
    max_episode_steps: int | None = None

    @classmethod
    def of(cls, config: RunConfig, *, critic_warmup: bool, max_episode_steps: int) -> EmbodiedObjective:
        """Bind the configuration; ``max_episode_steps`` are actions of a pass."""
        actor, algorithm = config.actor, config.algorithm
        loss_type = loss_type_of(config)
        settings: dict[str, Any] = {
            "loss_type": loss_type,
            "logprob_type": algorithm.logprob_type,
            "entropy_type": algorithm.entropy_type,
            "action_dim": getattr(config.model, "action_dim", 1),
            "clip_low": actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low,
            "clip_high": actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high,
            "clip_dual": actor.clip_ratio_c,
            "log_ratio_min": algorithm.clip_log_ratio_min,
            "log_ratio_max": algorithm.clip_log_ratio_max,
            "entropy_coeff": actor.entropy_coeff,
            "critic_warmup": critic_warmup,
        }
        if loss_type != "actor":
            settings |= {"value_clip": config.critic.cliprange_value, "huber_delta": algorithm.huber_delta}
        by_length = actor.loss_agg_mode == "seq-mean-token-mean"
        return cls(
            settings=settings,
            learns_values=loss_type != "actor",
            batch_rows=actor.ppo_mini_batch_size,
            max_episode_steps=max_episode_steps if by_length else None,
        )

    def __call__(
        self, output: Mapping[str, Tensor], batch: Batch, context: LossContext
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss of one micro-batch and its metrics."""
        mask = batch["response_mask"].bool()
        given: dict[str, Any] = {}
        if self.learns_values:
            values = output["values"].float().reshape(batch["prev_values"].shape)
            given = {"values": values, "old_values": batch["prev_values"], "returns": batch["returns"]}
        if self.max_episode_steps is not None:
            given |= {"mask_sum": batch["mask_sums"], "max_episode_steps": self.max_episode_steps}
        logprobs = output["logprobs"]
        loss, metrics = embodied_objective(
            logprobs.reshape(batch["prev_logprobs"].shape),
            batch["prev_logprobs"],
            batch["advantages"],
            mask,
            entropy=_like(output.get("entropy"), batch["prev_logprobs"]),
            dp_size=context.dp_size,
            batch_num_tokens=context.batch_num_tokens,
            batch_rows=self.batch_rows,
            **self.settings,
            **given,
        )
        weight = float(mask.sum())
        return loss, {
            name: Metric(float(value), "sum") if name in SHARES else Metric(float(value), "mean", weight)
            for name, value in metrics.items()
        }


def _like(tensor: Tensor | None, other: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.reshape(other.shape)
