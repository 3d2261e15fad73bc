"""Loss functions of the engine contract: they bind a configuration to the pure functions of :mod:`plugrl.algorithms`.

Each is a frozen, picklable callable ``(model_output, micro_batch, context) -> (loss, metrics)``, see
:data:`plugrl.engines.base.LossFunction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from plugrl.algorithms import actor_objective, aggregate, value_loss
from plugrl.config.schema import ActorConfig, CriticConfig
from plugrl.engines.base import Batch, LossContext
from plugrl.metric import Metric

_SHARES = frozenset({"actor/loss", "actor/pg_loss", "actor/entropy_loss", "actor/entropy", "actor/kl_loss"})
"""Metrics that are shares of the whole batch: they add up over micro-batches instead of being averaged."""


@dataclass(frozen=True, kw_only=True)
class PolicyObjective:
    """Policy loss, entropy bonus and KL loss of the actor.

    Batch keys: ``response_mask``, ``advantages``, all [B, T]; ``old_log_probs`` [B, T] may be absent when the whole
    batch is one optimizer step: the policy is then its own old policy. ``ref_log_probs`` [B, T] with a KL loss.

    max_response_length: the divisor of ``seq-mean-token-sum-norm`` unless the configuration gives one. Not the padded
    width: that follows the longest response, and a norm must not change from batch to batch.
    """

    config: ActorConfig
    max_response_length: int

    def __call__(
        self, output: Mapping[str, Tensor], batch: Batch, context: LossContext
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss of one micro-batch and its metrics."""
        config, mask, log_probs = self.config, batch["response_mask"], output["logprobs"]
        loss, metrics = actor_objective(
            log_probs,
            batch["old_log_probs"] if "old_log_probs" in batch else log_probs.detach(),
            batch["advantages"],
            mask,
            clip_low=config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
            clip_high=config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
            clip_dual=config.clip_ratio_c,
            loss_mode=config.policy_loss.loss_mode,
            loss_options=config.policy_loss.options,
            aggregation=config.loss_agg_mode,
            entropy=output.get("entropy"),
            entropy_coeff=config.entropy_coeff,
            ref_log_probs=batch["ref_log_probs"] if config.use_kl_loss else None,
            kl_loss_coef=config.kl_loss_coef,
            kl_loss_type=config.kl_loss_type,
            dp_size=context.dp_size,
            batch_num_tokens=context.batch_num_tokens,
            global_batch_size=context.global_batch_size,
            loss_scale_factor=config.loss_scale_factor or float(self.max_response_length),
        )
        return loss, weigh(metrics, mask)


@dataclass(frozen=True, kw_only=True)
class ValueObjective:
    """Clipped value loss of the critic. Batch keys: ``response_mask``, ``values``, ``returns``, all [B, T].

    max_response_length: see :class:`PolicyObjective`.
    """

    config: CriticConfig
    max_response_length: int

    def __call__(
        self, output: Mapping[str, Tensor], batch: Batch, context: LossContext
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss of one micro-batch and its metrics."""
        mask = batch["response_mask"]
        loss, metrics = value_loss(
            output["values"],
            batch["values"],
            batch["returns"],
            mask,
            cliprange_value=self.config.cliprange_value,
            aggregation=self.config.loss_agg_mode,
            dp_size=context.dp_size,
            batch_num_tokens=context.batch_num_tokens,
            global_batch_size=context.global_batch_size,
            loss_scale_factor=float(self.max_response_length),
        )
        return loss, {**weigh(metrics, mask), "critic/vf_loss": Metric(loss.item(), "sum")}


@dataclass(frozen=True, kw_only=True)
class SupervisedObjective:
    """What supervised training minimises, by what the policy's ``sft_forward`` gives.

    ``logprobs`` [B, T]: the mean negative log-likelihood of the response tokens, with ``response_mask`` [B, T] in the
    batch. ``losses`` [B]: the mean over the samples of a loss that the policy computes itself. Numbers under
    ``metrics`` in the output are reported as means over samples.
    """

    aggregation: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"

    def __call__(
        self, output: Mapping[str, Any], batch: Batch, context: LossContext
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss of one micro-batch and its metrics."""
        if "losses" in output:
            loss = output["losses"].sum() * (context.dp_size / max(context.global_batch_size, 1))
        else:
            loss = aggregate(
                -output["logprobs"],
                batch["response_mask"],
                self.aggregation,
                dp_size=context.dp_size,
                batch_num_tokens=context.batch_num_tokens,
                global_batch_size=context.global_batch_size,
            )
        rows = next(iter(batch.values())).shape[0]
        return loss, {**own_metrics(output, rows), "sft/loss": Metric(loss.item(), "sum")}

    def held_out(self, output: Mapping[str, Tensor], batch: Batch, valid: int) -> tuple[float, float]:
        """Return the sum of the losses of the first ``valid`` rows, and what it is to be divided by."""
        if "losses" in output:
            return float(output["losses"][:valid].double().sum()), float(valid)
        mask = batch["response_mask"][:valid].to(output["logprobs"].device)
        return float(-(output["logprobs"][:valid] * mask).double().sum()), float(mask.sum())


def own_metrics(output: Mapping[str, Any], rows: int) -> dict[str, Metric]:
    """Return what a policy reports under ``metrics``: numbers become means, texts and truth values are left out."""
    found: dict[str, Metric] = {}
    for name, value in (output.get("metrics") or {}).items():
        if isinstance(value, Metric):
            found[f"sft/{name}"] = value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"sft/{name}"] = Metric(value, "mean", rows)
        elif isinstance(value, Tensor) and value.numel() == 1 and value.dtype != torch.bool:
            found[f"sft/{name}"] = Metric(value.item(), "mean", rows)
    return found


def weigh(metrics: Mapping[str, Tensor], mask: Tensor) -> dict[str, Metric]:
    """Give each 0-d metric its reduction: shares add up, masked means are weighted by the tokens under ``mask``."""
    tokens = float(mask.sum())
    return {
        name: Metric(float(value), "sum") if name in _SHARES else Metric(float(value), "mean", tokens)
        for name, value in metrics.items()
    }
