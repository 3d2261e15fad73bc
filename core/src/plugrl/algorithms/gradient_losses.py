"""Policy losses of the score-function form: a constant weight times the log-probability of each token.

Call them as :func:`plugrl.algorithms.policy_loss`. r is the probability ratio, p the probabilities, A the advantage.
Names and definitions are verl's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.formulas import Metrics, log_ratio, loss_metrics, token_loss
from plugrl.errors import UserError

RATIO_CAP = 20.0
"""Bound of the ratio in the dppo losses when no ``clip_dual`` is given."""


@token_loss()
def gpg(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
    """Plain policy gradient: -A log p; no metrics. Source: arXiv:2504.02546."""
    return -advantages * log_probs, {}


@token_loss()
def cispo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Tensor, Metrics]:
    """CISPO: -clamp(r, 1 - clip_low, 1 + clip_high) A log p, the weight without gradient. Source: arXiv:2506.13585."""
    difference = log_ratio(log_probs, old_log_probs)
    ratio = difference.exp().detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * log_probs, loss_metrics(difference, mask, clipped=weight != ratio)


@token_loss()
def dppo_tv(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
) -> tuple[Tensor, Metrics]:
    """DPPO, total variation: -min(r, clip_dual) A log p, dropped where p moved too far in the wanted direction.

    A token is dropped where p - p_old > clip_high (A > 0) or p - p_old < -clip_low (A <= 0).
    """
    moved = (log_probs.exp() - old_log_probs.exp()).detach()
    dropped = torch.where(advantages > 0, moved > clip_high, moved < -clip_low)
    return _dppo(log_probs, old_log_probs, advantages, mask, dropped, clip_dual)


@token_loss()
def dppo_kl(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
) -> tuple[Tensor, Metrics]:
    """DPPO, binary KL: as ``dppo_tv``, dropped by K = KL(Bernoulli(p_old), Bernoulli(p)).

    A token is dropped where K > clip_high and p > p_old (A > 0), or K > clip_low and p < p_old (A <= 0).
    """
    new, old = log_probs.detach().exp(), old_log_probs.exp()
    rest = (1 - old) * torch.log((1 - old + 1e-8) / (1 - new + 1e-8))
    divergence = old * (old_log_probs - log_probs.detach()) + rest
    up, down = (divergence > clip_high) & (new > old), (divergence > clip_low) & (new < old)
    return _dppo(log_probs, old_log_probs, advantages, mask, torch.where(advantages > 0, up, down), clip_dual)


def _dppo(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    dropped: Tensor,
    clip_dual: float | None,
) -> tuple[Tensor, Metrics]:
    cap = RATIO_CAP if clip_dual is None else clip_dual
    difference = log_ratio(log_probs, old_log_probs)
    ratio = difference.exp().detach()
    per_token = torch.where(dropped, 0.0, -advantages * ratio.clamp(max=cap) * log_probs)
    return per_token, loss_metrics(difference, mask, clipped=dropped, lower=~dropped & (ratio > cap))


@token_loss()
def dro(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    dro_beta: float | None = None,
) -> tuple[Tensor, Metrics]:
    """DRO: -(A log p - dro_beta / 2 x log-ratio^2), the log-ratio not clamped; only ``actor/ppo_kl``.

    Source: arXiv:2405.19107. Raises UserError (a ValueError) unless ``dro_beta`` is positive.
    """
    if dro_beta is None or dro_beta <= 0:
        raise UserError(f"dro needs a positive dro_beta (actor.policy_loss.options.dro_beta), not {dro_beta}.")
    difference = log_probs - old_log_probs
    per_token = -(advantages * log_probs - dro_beta / 2 * difference**2)
    return per_token, {"actor/ppo_kl": loss_metrics(difference, mask)["actor/ppo_kl"]}
