"""PPO against a proximal policy: for actions that an older policy took. Source: AReaL, arXiv:2505.24298."""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.embodied.averaging import expand_to
from plugrl.algorithms.embodied.losses import Mean, limited, mean_ratio, prepare, with_critic
from plugrl.algorithms.formulas import Metrics, log_ratio, share
from plugrl.algorithms.masking import full_precision, masked_mean, zero_masked
from plugrl.algorithms.policy_losses import clipped_surrogate


def decoupled_actor(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    mean: Mean,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
    log_ratio_min: float | None = None,
    log_ratio_max: float | None = None,
    proximal_log_probs: Tensor | None = None,
    versions: Tensor | None = None,
    current_version: int | None = None,
    behave_weight_threshold: float | None = None,
) -> tuple[Tensor, Metrics]:
    """PPO on new / proximal, each element weighted by proximal / behaviour. Tensors as in :func:`losses.actor`.

    Args:
        proximal_log_probs: of a policy close to the one in training, such as that at the start of the update. Without
            them they are interpolated, see :func:`interpolated`; without versions as well they are the old ones.
        versions: [B] or [B, ...], the weight version that took each action; -1 where it is not known.
        current_version: the version in training.
        behave_weight_threshold: elements with a larger weight are dropped from the mean. Where the mean runs over a
            count of the whole batch, that count is to be without them.

    Returns:
        The loss and ``actor/{ppo_kl,pg_clipfrac,pg_clipfrac_lower}`` and ``actor/{proximal_ratio,
        clipped_proximal_ratio,proximal_approx_kl}`` against the proximal policy, ``actor/behav_approx_kl`` of the
        elements that are kept, ``actor/behav_clip_fraction``, the share of those dropped, ``actor/average_version``
        and ``actor/current_version``.
    """
    valid, new, old, gains = prepare(log_probs, old_log_probs, advantages, mask)
    if proximal_log_probs is not None:
        near = zero_masked(expand_to(full_precision(proximal_log_probs), new, "Proximal log-probabilities"), valid)
    else:
        near = interpolated(new.detach(), old, versions, current_version)
    near = near.detach()
    difference, behind = log_ratio(new, near), log_ratio(near, old)
    ratio, weight = limited(difference, log_ratio_min, log_ratio_max).exp(), behind.exp()
    kept = valid if behave_weight_threshold is None else valid & (weight <= behave_weight_threshold)
    elements, clipped, lower = clipped_surrogate(ratio, gains, clip_low, clip_high, clip_dual)
    kl = masked_mean(-difference.detach(), valid)
    metrics = {
        "actor/ppo_kl": kl,
        "actor/pg_clipfrac": share(clipped, valid),
        "actor/pg_clipfrac_lower": share(torch.zeros_like(valid) if lower is None else lower, valid),
        "actor/proximal_ratio": mean_ratio(ratio, valid),
        "actor/clipped_proximal_ratio": mean_ratio(ratio.clamp(1 - clip_low, 1 + clip_high), valid),
        "actor/proximal_approx_kl": kl,
        "actor/behav_approx_kl": masked_mean(-behind, kept),
        "actor/behav_clip_fraction": share(valid & ~kept, valid),
    }
    if versions is not None:
        metrics["actor/average_version"] = masked_mean(expand_to(full_precision(versions), new, "Versions"), valid)
    if current_version is not None:
        metrics["actor/current_version"] = torch.tensor(float(current_version))
    return mean(weight * elements, mask if behave_weight_threshold is None else kept), metrics


def decoupled_actor_critic(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    mean: Mean,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
    log_ratio_min: float | None = None,
    log_ratio_max: float | None = None,
    proximal_log_probs: Tensor | None = None,
    versions: Tensor | None = None,
    current_version: int | None = None,
    behave_weight_threshold: float | None = None,
    values: Tensor | None = None,
    old_values: Tensor | None = None,
    returns: Tensor | None = None,
    value_clip: float | None = 0.2,
    huber_delta: float | None = 10.0,
    critic_warmup: bool = False,
) -> tuple[Tensor, Metrics]:
    """:func:`decoupled_actor` + :func:`losses.critic`. Raises UserError without values."""
    policy = decoupled_actor(
        log_probs,
        old_log_probs,
        advantages,
        mask,
        mean=mean,
        clip_low=clip_low,
        clip_high=clip_high,
        clip_dual=clip_dual,
        log_ratio_min=log_ratio_min,
        log_ratio_max=log_ratio_max,
        proximal_log_probs=proximal_log_probs,
        versions=versions,
        current_version=current_version,
        behave_weight_threshold=behave_weight_threshold,
    )
    return with_critic(
        policy,
        mask,
        mean=mean,
        values=values,
        old_values=old_values,
        returns=returns,
        value_clip=value_clip,
        huber_delta=huber_delta,
        critic_warmup=critic_warmup,
    )


def interpolated(new: Tensor, old: Tensor, versions: Tensor | None, current_version: int | None) -> Tensor:
    """Guess the proximal policy between the one that acted and the one in training, by how old the action is.

    old + alpha (new - old) with alpha = clamp((v - 1 - v_b) / (v - v_b), 0, 1); 0 where the version v_b is unknown
    (below 0) or not older than the current v.
    """
    if versions is None or current_version is None:
        return old
    acted = expand_to(full_precision(versions), new, "Versions")
    age = current_version - acted
    alpha = ((age - 1) / age.clamp(min=1)).clamp(0, 1)
    return old + torch.where((acted >= 0) & (age > 0), alpha, torch.zeros_like(alpha)) * (new - old)
