"""Policy losses whose gradient flows through the probability ratio r = exp(log_probs - old_log_probs).

Call them as :func:`policy_loss`; :mod:`plugrl.algorithms.formulas` says what they have in common. Names and
definitions are verl's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.formulas import Metrics, log_ratio, loss_metrics, token_loss
from plugrl.algorithms.masking import masked_mean
from plugrl.errors import UserError


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, clip_dual: float | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """PPO of each element: max(-A r, -A clamp(r, 1 - clip_low, 1 + clip_high)), for A < 0 at most -A clip_dual.

    Returns:
        The losses, where the clipped term is the larger one, and where the dual clip holds (None without one).

    Sources: arXiv:1707.06347, arXiv:1912.09729 (dual clip). Raises UserError if ``clip_dual`` is not above 1.
    """
    if clip_dual is not None and clip_dual <= 1:
        raise UserError(f"The dual clip (clip_ratio_c) must be above 1, not {clip_dual}.")
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(plain, clipped)
    if clip_dual is None:
        return losses, clipped > plain, None
    negative, bound = advantages < 0, -advantages * clip_dual
    lower = negative & (losses > bound)
    return torch.where(negative, torch.minimum(losses, bound), losses), clipped > plain, lower


@token_loss()
def vanilla(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
) -> tuple[Tensor, Metrics]:
    """PPO, see :func:`clipped_surrogate`."""
    difference = log_ratio(log_probs, old_log_probs)
    per_token, clipped, lower = clipped_surrogate(difference.exp(), advantages, clip_low, clip_high, clip_dual)
    return per_token, loss_metrics(difference, mask, clipped=clipped, lower=lower)


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None = None,
    aggregation: str = "token-mean",
    rollout_is_weights: Tensor | None = None,
    dp_size: int = 1,
    batch_num_tokens: int | float | Tensor | None = None,
    global_batch_size: int | float | Tensor | None = None,
    loss_scale_factor: float | None = None,
) -> tuple[Tensor, Metrics]:
    """The clipped PPO loss (mode ``vanilla``) of one micro-batch.

    Args:
        log_probs: [B, T] of the policy in training, with gradient.
        old_log_probs: [B, T] of the policy that sampled.
        advantages: [B, T].
        mask: [B, T], valid response tokens. Nothing at masked positions, NaN included, reaches loss or gradient.
        clip_low: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        clip_high: see ``clip_low``.
        clip_dual: bound of the loss at negative advantages, in units of -A; above 1; None leaves it out.
        aggregation: mode of :func:`plugrl.algorithms.aggregate`, which explains the remaining keywords.
        rollout_is_weights: [B, T], multiplied to the loss of each token; metrics ignore them.

    Returns:
        The loss, 0-d, and 0-d metrics: ``actor/pg_clipfrac``, ``actor/ppo_kl``, ``actor/pg_clipfrac_lower``.

    Raises:
        UserError: (a ValueError) ``clip_dual`` not above 1, unknown aggregation, missing global counts.
    """
    return vanilla(
        log_probs,
        old_log_probs,
        advantages,
        mask,
        clip_low=clip_low,
        clip_high=clip_high,
        clip_dual=clip_dual,
        aggregation=aggregation,
        rollout_is_weights=rollout_is_weights,
        dp_size=dp_size,
        batch_num_tokens=batch_num_tokens,
        global_batch_size=global_batch_size,
        loss_scale_factor=loss_scale_factor,
    )


@token_loss(aggregation="seq-mean-token-mean")
def gspo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> tuple[Tensor, Metrics]:
    """GSPO: the clip of PPO on one ratio a sequence, exp(mean log-ratio), whose gradient goes to each token alike.

    Always aggregated seq-mean-token-mean. Source: arXiv:2507.18071.
    """
    difference = log_probs - old_log_probs
    sequence = masked_mean(difference, mask, -1).detach().unsqueeze(-1)
    ratio = (log_probs - log_probs.detach() + sequence).clamp(max=10.0).exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(plain, clipped), loss_metrics(difference, mask, clipped=clipped > plain)


@token_loss(aggregation="seq-mean-token-mean")
def sapo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> tuple[Tensor, Metrics]:
    """SAPO: -A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of the advantage; always seq-mean-token-mean.

    Source: arXiv:2511.20347.
    """
    difference = log_ratio(log_probs, old_log_probs)
    tau = torch.where(advantages > 0, tau_pos, tau_neg).to(log_probs)
    gate = torch.sigmoid(tau * (difference.exp() - 1)) * (4.0 / tau)
    return -advantages * gate, loss_metrics(difference, mask)


@token_loss(aggregation="seq-mean-token-mean")
def geo_mean(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Tensor, Metrics]:
    """GMPO: -(mean advantage) x geometric mean of the clipped ratios for each row; mean over rows in every mode.

    The log-ratio is clipped to [-clip_low, clip_high] where that makes the objective smaller. arXiv:2507.20673.
    """
    difference = log_probs - old_log_probs
    sign = torch.sign(advantages)
    bounded = sign * torch.minimum(sign * difference, sign * difference.clamp(-clip_low, clip_high))
    ratio = masked_mean(bounded, mask, -1).exp()
    per_row = -masked_mean(advantages, mask, -1) * ratio
    outside = (difference < -clip_low) | (difference > clip_high)
    metrics = loss_metrics(difference, mask, clipped=outside & (advantages > 0), lower=outside & (advantages < 0))
    return per_row.unsqueeze(-1).expand(mask.shape), metrics
