"""Policy losses over actions. They take tensors of the level at which probabilities are compared, see the registry."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugrl.algorithms.embodied.averaging import expand_to, match
from plugrl.algorithms.formulas import Metrics, log_ratio, loss_metrics, share
from plugrl.algorithms.masking import full_precision, masked_mean, zero_masked
from plugrl.algorithms.policy_losses import clipped_surrogate
from plugrl.algorithms.value_losses import clipped_value_error
from plugrl.errors import UserError

Mean = Callable[[Tensor, Tensor | None], Tensor]
"""``mean(values, mask) -> 0-d``: the average over the valid elements of the whole batch."""


def actor(
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
) -> tuple[Tensor, Metrics]:
    """PPO over actions; see :func:`plugrl.algorithms.policy_losses.clipped_surrogate`.

    Args:
        log_probs: [B, C, D], [B, C] or [B] of the policy in training, with gradient.
        old_log_probs: the same of the policy that acted.
        advantages: [B, C] or [B, 1] (or fewer dimensions); expanded over what stands for the same action.
        mask: the same shapes; what stands at masked places, NaN included, reaches neither loss nor gradient.
        mean: how elements become one number, see :class:`plugrl.algorithms.embodied.Averaging`.
        clip_low: the ratio is clipped to [1 - clip_low, 1 + clip_high].
        clip_dual: bound of the loss at negative advantages, in units of -A; above 1.
        log_ratio_min: the log-ratio is clamped to [log_ratio_min, log_ratio_max] before exp.

    Returns:
        The loss, 0-d, and masked means: verl's ``actor/pg_clipfrac``, ``actor/pg_clipfrac_lower``, ``actor/ppo_kl``,
        and ``actor/ratio`` and ``actor/clipped_ratio``, which are 1 where nothing is valid.
    """
    valid, new, old, gains = prepare(log_probs, old_log_probs, advantages, mask)
    difference = log_ratio(new, old)
    ratio = limited(difference, log_ratio_min, log_ratio_max).exp()
    elements, clipped, lower = clipped_surrogate(ratio, gains, clip_low, clip_high, clip_dual)
    metrics = loss_metrics(difference, valid, clipped=clipped, lower=lower)
    metrics["actor/ratio"] = mean_ratio(ratio, valid)
    metrics["actor/clipped_ratio"] = mean_ratio(ratio.clamp(1 - clip_low, 1 + clip_high), valid)
    return mean(elements, mask), metrics


def opd(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    mean: Mean,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_dual: float | None = None,
) -> tuple[Tensor, Metrics]:
    """On-policy distillation: :func:`actor` with the teacher's advantages; reports their mean as ``actor/opd_reward``.

    ``actor/opd_reverse_kl`` is its negative, the divergence from the teacher at the sampled tokens.
    """
    loss, metrics = actor(
        log_probs,
        old_log_probs,
        advantages,
        mask,
        mean=mean,
        clip_low=clip_low,
        clip_high=clip_high,
        clip_dual=clip_dual,
    )
    reward = masked_mean(*match(full_precision(advantages).detach(), mask))
    return loss, {**metrics, "actor/opd_reward": reward, "actor/opd_reverse_kl": -reward}


def critic(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor,
    mask: Tensor | None = None,
    *,
    mean: Mean,
    value_clip: float | None = 0.2,
    huber_delta: float | None = 10.0,
) -> tuple[Tensor, Metrics]:
    """max(huber(R - V), huber(R - V clipped to value_clip around the old value)), averaged as the policy loss is.

    Args:
        values: [B, C] or [B, 1] of the policy in training, with gradient.
        returns: the same shape, the targets.
        old_values: the same shape, of the policy that acted.
        mask: see :func:`actor`.

    Returns:
        The loss, 0-d, and ``critic/vf_loss`` (its share of the whole batch), ``critic/value_clip_ratio`` (share of
        valid values further than ``value_clip`` from the old ones) and ``critic/vpred_mean``.
    """
    shaped, valid = match(full_precision(values), mask)
    new = zero_masked(shaped, valid)
    target, old = (
        zero_masked(expand_to(full_precision(tensor), new, what), valid).detach()
        for tensor, what in ((returns, "returns"), (old_values, "old values"))
    )
    loss = mean(torch.maximum(*clipped_value_error(new, old, target, value_clip, huber_delta)), mask)
    far = (new - old).abs() > value_clip if value_clip is not None else torch.zeros_like(valid)
    return loss, {
        "critic/vf_loss": loss.detach(),
        "critic/value_clip_ratio": share(far, valid),
        "critic/vpred_mean": masked_mean(new.detach(), valid),
    }


def with_critic(
    policy: tuple[Tensor, Metrics],
    mask: Tensor | None,
    *,
    mean: Mean,
    values: Tensor | None,
    old_values: Tensor | None,
    returns: Tensor | None,
    value_clip: float | None,
    huber_delta: float | None,
    critic_warmup: bool,
) -> tuple[Tensor, Metrics]:
    """Add the loss of the critic to that of the policy; in warm-up the policy's is 0 and so is its gradient."""
    if values is None or old_values is None or returns is None:
        raise UserError(
            "A loss with a critic needs values, old values and returns: set actor.model.add_value_head and an "
            "estimator with returns, such as gae; or take algorithm.loss_type actor."
        )
    loss, metrics = policy
    # Times 0 instead of left out: every parameter then has a gradient, which sharded engines count on.
    loss = loss * 0.0 if critic_warmup else loss
    value_loss, value_metrics = critic(
        values, returns, old_values, mask, mean=mean, value_clip=value_clip, huber_delta=huber_delta
    )
    return loss + value_loss, {**metrics, "actor/pg_loss": loss.detach(), **value_metrics}


def actor_critic(
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
    values: Tensor | None = None,
    old_values: Tensor | None = None,
    returns: Tensor | None = None,
    value_clip: float | None = 0.2,
    huber_delta: float | None = 10.0,
    critic_warmup: bool = False,
) -> tuple[Tensor, Metrics]:
    """:func:`actor` + :func:`critic`; with ``critic_warmup`` the critic alone. Raises UserError without values."""
    policy = actor(
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


def prepare(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mask, new and old log-probabilities and advantages in one shape, 0 where masked, in full precision."""
    shaped, valid = match(log_probs, mask)
    if shaped.numel() != log_probs.numel():
        expand_to(valid, log_probs, "Masks")
    new = zero_masked(full_precision(shaped), valid)
    old = zero_masked(expand_to(full_precision(old_log_probs), new, "Old log-probabilities"), valid)
    gains = zero_masked(expand_to(full_precision(advantages), new, "Advantages"), valid)
    return valid, new, old.detach(), gains.detach()


def limited(difference: Tensor, lowest: float | None, highest: float | None) -> Tensor:
    """Clamp log-ratios to what the configuration allows."""
    return difference if lowest is None and highest is None else difference.clamp(lowest, highest)


def mean_ratio(ratio: Tensor, valid: Tensor) -> Tensor:
    """Return the mean ratio over valid elements; 1, which says that nothing changed, where there are none."""
    return 1 + masked_mean(ratio.detach() - 1, valid)
