"""Policy losses that hold back the tokens whose log-probability and advantage vary together. Source: arXiv:2505.22617.

These few tokens drive the entropy down. They are found among the tokens of one call: unlike the other losses, these
depend on how a batch is split into micro-batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.formulas import Metrics, log_ratio, loss_metrics, token_loss
from plugrl.algorithms.masking import masked_mean


def _covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return each token's product of deviations from the means [B, T]; its mean is the covariance."""
    probable = log_probs.detach()
    return (advantages - masked_mean(advantages, mask)) * (probable - masked_mean(probable, mask))


@token_loss()
def clip_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Metrics]:
    """Clip-Cov: PPO's clipped loss, without a random ``clip_cov_ratio`` of all tokens (at least one).

    Candidates have a covariance between the two bounds and are not clipped already. ``actor/pg_clipfrac`` is the share
    dropped. ``generator``: source of the random choice, on the CPU; by default torch's global one.
    """
    difference = log_ratio(log_probs, old_log_probs)
    ratio = difference.exp()
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    covariance = _covariance(log_probs, advantages, mask)
    inside = (covariance > clip_cov_lb) & (covariance < clip_cov_ub)
    candidates = (mask & inside & ~(clipped > plain)).flatten().nonzero().squeeze(-1)
    number = max(int(clip_cov_ratio * int(mask.sum())), 1)
    chosen = candidates[torch.randperm(candidates.numel(), generator=generator)[:number].to(candidates.device)]
    dropped = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    dropped[chosen] = True
    dropped = dropped.view(mask.shape)
    per_token = torch.where(dropped, 0.0, torch.maximum(plain, clipped))
    return per_token, loss_metrics(difference, mask, clipped=dropped)


@token_loss()
def kl_cov(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    kl_cov_ratio: float = 0.0002,
    ppo_kl_coef: float = 0.1,
) -> tuple[Tensor, Metrics]:
    """KL-Cov: -A r, plus ``ppo_kl_coef`` |log-ratio| on the share ``kl_cov_ratio`` of tokens of highest covariance.

    At least one token is taken unless the share is 0. Only ``actor/ppo_kl`` is reported: nothing is clipped.
    """
    difference = log_ratio(log_probs, old_log_probs)
    per_token = -advantages * difference.exp()
    valid = int(mask.sum())
    if valid and kl_cov_ratio > 0:
        ranked = torch.where(mask, _covariance(log_probs, advantages, mask), -torch.inf).flatten()
        chosen = ranked.topk(min(max(int(valid * kl_cov_ratio), 1), valid)).indices
        held = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
        held[chosen] = True
        per_token = per_token + torch.where(held.view(mask.shape), ppo_kl_coef * difference.abs(), 0.0)
    return per_token, {"actor/ppo_kl": loss_metrics(difference, mask)["actor/ppo_kl"]}
