"""The whole loss of a policy that acts: policy and value loss, entropy bonus and divergence from a reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from plugrl.algorithms.divergence import kl
from plugrl.algorithms.embodied.averaging import Averaging, match
from plugrl.algorithms.embodied.levels import Level, at_level
from plugrl.algorithms.embodied.registry import get_embodied_loss
from plugrl.algorithms.masking import zero_masked

SHARES = frozenset(
    {"actor/loss", "actor/pg_loss", "actor/entropy_loss", "actor/entropy", "actor/kl_loss", "critic/vf_loss"}
)
"""Metrics that are shares of the whole batch: they add up over micro-batches. The others are masked means."""


def embodied_objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    loss_type: str = "actor_critic",
    logprob_type: Level = "token_level",
    entropy_type: Level | None = None,
    action_dim: int = 1,
    entropy: Tensor | None = None,
    entropy_coeff: float = 0.0,
    ref_log_probs: Tensor | None = None,
    kl_loss_coef: float = 0.0,
    kl_loss_type: str = "low_var_kl",
    critic_warmup: bool = False,
    proximal_log_probs: Tensor | None = None,
    mask_sum: Tensor | None = None,
    max_episode_steps: int | None = None,
    dp_size: int = 1,
    batch_num_tokens: int | float | Tensor | None = None,
    batch_rows: int | float | None = None,
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return policy loss (+ value loss) - entropy_coeff x entropy + kl_loss_coef x KL of one micro-batch of B rows.

    Args:
        log_probs: [B, C, D] or [B, C D] of the policy in training, with gradient.
        old_log_probs: the same of the policy that acted.
        advantages: [B, C], or [B, 1] with chunk-level rewards.
        mask: bool of that shape, the actions that count; None: all.
        loss_type: a registered embodied loss.
        logprob_type: the level at which ratios are taken, see :func:`at_level`.
        entropy_type: the level of the entropy; by default ``logprob_type``.
        action_dim: D, where log-probabilities are flat.
        entropy: of each token, as ``log_probs``; reported even if its coefficient is 0, then without gradient.
        ref_log_probs: of the reference policy, as ``log_probs``; None leaves the divergence out. It is estimated for
            each token and summed up to ``logprob_type``.
        critic_warmup: only the value loss counts.
        proximal_log_probs: as ``log_probs``, for the decoupled loss.
        mask_sum, max_episode_steps, dp_size, batch_num_tokens, batch_rows: see
            :class:`plugrl.algorithms.embodied.Averaging`.
        options: ``values``, ``old_values``, ``returns`` (as ``advantages``), ``clip_low``, ``clip_high``,
            ``clip_dual``, ``value_clip``, ``huber_delta``, ... : see the losses.

    Returns:
        The loss, 0-d with gradient, and 0-d metrics: those of the loss, and ``actor/loss``, ``actor/pg_loss``,
        ``actor/entropy_loss``, ``actor/entropy``, ``actor/kl_loss``, ``actor/kl_coef``. What :data:`SHARES` names
        adds up over micro-batches; the rest are means over the valid entries of ``mask``.

    Raises:
        UserError: (a ValueError) an unknown loss, level, divergence or option, shapes that do not fit.
    """
    mean = Averaging(
        dp_size=dp_size,
        batch_num_tokens=batch_num_tokens,
        batch_rows=batch_rows,
        mask_sum=mask_sum,
        max_episode_steps=max_episode_steps,
    )
    given: Mapping[str, Any] = {**options, "mean": mean, "critic_warmup": critic_warmup}
    if proximal_log_probs is not None:
        given = {**given, "proximal_log_probs": at_level(proximal_log_probs, logprob_type, action_dim)}
    loss, found = get_embodied_loss(loss_type)(
        at_level(log_probs, logprob_type, action_dim),
        at_level(old_log_probs, logprob_type, action_dim),
        advantages,
        mask,
        **given,
    )
    metrics = {"actor/pg_loss": loss.detach(), **found}
    if entropy is not None:
        learnt = entropy_coeff != 0.0 and not critic_warmup
        summed = at_level(entropy if learnt else entropy.detach(), entropy_type or logprob_type, action_dim)
        bonus = mean.plain(summed, mask)
        loss = loss - entropy_coeff * bonus if learnt else loss
        metrics["actor/entropy_loss"] = metrics["actor/entropy"] = bonus.detach()
    if ref_log_probs is not None:
        tokens, valid = match(at_level(log_probs - ref_log_probs, "token_level", action_dim), mask)
        apart = zero_masked(tokens, valid)
        divergence = mean.plain(at_level(kl(apart, torch.zeros_like(apart), kl_loss_type), logprob_type), mask)
        loss = loss if critic_warmup else loss + kl_loss_coef * divergence
        metrics["actor/kl_loss"] = divergence.detach()
        metrics["actor/kl_coef"] = torch.tensor(float(kl_loss_coef))
    metrics["actor/loss"] = loss.detach()
    return loss, metrics
