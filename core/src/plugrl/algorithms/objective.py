"""The whole loss of the actor: policy loss, entropy bonus and KL loss, aggregated alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor

from plugrl.algorithms.aggregation import Counts, aggregate
from plugrl.algorithms.divergence import kl
from plugrl.algorithms.registry import get_policy_loss


def actor_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None = None,
    loss_mode: str = "vanilla",
    loss_options: Mapping[str, Any] | None = None,
    aggregation: str = "token-mean",
    entropy: Tensor | None = None,
    entropy_coeff: float = 0.0,
    ref_log_probs: Tensor | None = None,
    kl_loss_coef: float = 0.0,
    kl_loss_type: str = "low_var_kl",
    rollout_is_weights: Tensor | None = None,
    **counts: Unpack[Counts],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return policy loss - entropy_coeff x entropy + kl_loss_coef x KL of one micro-batch.

    Args:
        entropy: [B, T] of each token's distribution; reported even if its coefficient is 0, then without gradient.
        ref_log_probs: [B, T] of the reference policy; None leaves the KL loss out.
        loss_mode: a registered policy loss; ``loss_options`` are its own options.
        counts: the global counts of :func:`plugrl.algorithms.aggregate`.

    The other arguments are those of :func:`plugrl.algorithms.policy_loss`.

    Returns:
        The loss, 0-d with gradient, and 0-d metrics: those of the policy loss (masked means over this micro-batch), and
        ``actor/loss``, ``actor/pg_loss``, ``actor/entropy_loss``, ``actor/entropy``, ``actor/kl_loss``,
        ``actor/kl_coef``. The losses are shares of the whole batch: they add up over micro-batches.

    Raises:
        UserError: (a ValueError) unknown loss mode, KL kind or aggregation, or a missing count.
    """
    pg_loss, metrics = get_policy_loss(loss_mode)(
        log_probs,
        old_log_probs,
        advantages,
        mask,
        clip_low=clip_low,
        clip_high=clip_high,
        clip_dual=clip_dual,
        aggregation=aggregation,
        rollout_is_weights=rollout_is_weights,
        **(loss_options or {}),
        **counts,
    )
    loss, metrics = pg_loss, {**metrics, "actor/pg_loss": pg_loss.detach()}
    if entropy is not None:
        bonus = aggregate(entropy if entropy_coeff else entropy.detach(), mask, aggregation, **counts)
        loss = loss - entropy_coeff * bonus if entropy_coeff else loss
        metrics["actor/entropy_loss"] = metrics["actor/entropy"] = bonus.detach()
    if ref_log_probs is not None:
        divergence = aggregate(kl(log_probs, ref_log_probs, kl_loss_type, mask), mask, aggregation, **counts)
        loss = loss + kl_loss_coef * divergence
        metrics["actor/kl_loss"] = divergence.detach()
        metrics["actor/kl_coef"] = torch.tensor(float(kl_loss_coef))
    metrics["actor/loss"] = loss.detach()
    return loss, metrics
