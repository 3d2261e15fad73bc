"""The metrics of a training step, under verl's names: data, timing, critic, rollout difference, sequence lengths.

Every function takes tensors of the whole batch and returns plain floats by name. :class:`Metric`, which carries its own
reduction, stands in the lowest layer and is given on here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from plugrl.algorithms.masking import as_mask, masked_mean, masked_sum, masked_var, zero_masked
from plugrl.metric import Metric

__all__ = [
    "Metric",
    "critic_metrics",
    "data_metrics",
    "reduce_metrics",
    "rollout_difference_metrics",
    "sequence_length_metrics",
    "timing_metrics",
    "variance_proxy_metrics",
]

RESPONSE_PHASES = ("gen",)
"""Phases whose time is given per response token."""

ALL_PHASES = ("ref", "values", "adv", "update_critic", "update_actor")
"""Phases whose time is given per token of prompt and response."""


def data_metrics(
    *,
    token_scores: Tensor,
    token_rewards: Tensor,
    advantages: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    prompt_lengths: Tensor,
    prompt_width: int,
    response_width: int | None = None,
    response_lengths: Tensor | None = None,
    values: Tensor | None = None,
    num_turns: Tensor | Sequence[int] | None = None,
) -> dict[str, float]:
    """Describe a batch of B responses padded to T tokens.

    Args:
        token_scores: [B, T], rewards before any KL penalty.
        token_rewards: [B, T], rewards as the estimator saw them.
        advantages: [B, T].
        returns: [B, T].
        response_mask: [B, T], valid tokens.
        prompt_lengths: [B], tokens.
        prompt_width: tokens that a prompt may have at most; ``clip_ratio`` is the share of those that have so many.
        response_width: tokens that a response may have at most; by default the padded width T.
        response_lengths: [B], tokens including observations; by default the valid ones.
        values: [B, T] of the critic, where there is one.
        num_turns: [B], turns of a conversation with tools.

    Returns:
        ``critic/{score,rewards}`` over rows that were not aborted (length 0), ``critic/{advantages,returns}`` over
        valid tokens, ``response_length``, ``response_length_non_aborted``, ``response/aborted_ratio``,
        ``prompt_length``, ``num_turns`` and those of :func:`critic_metrics`. A statistic of nothing is 0.
    """
    valid = as_mask(response_mask)
    lengths = (valid.sum(-1) if response_lengths is None else response_lengths).float()
    finished = lengths > 0
    result: dict[str, float] = {}
    for name, tokens in (("score", token_scores), ("rewards", token_rewards)):
        result |= _statistics(f"critic/{name}", masked_sum(tokens.float(), valid, -1)[finished])
    for name, tokens in (("advantages", advantages), ("returns", returns)):
        result |= _statistics(f"critic/{name}", tokens[valid])
    if values is not None:
        result |= critic_metrics(values, returns, valid)
    width = valid.shape[-1] if response_width is None else response_width
    result |= _length_statistics("response_length", lengths, width)
    result |= _length_statistics("response_length_non_aborted", lengths[finished], width)
    result["response/aborted_ratio"] = _mean((~finished).float())
    result |= _length_statistics("prompt_length", prompt_lengths.float(), prompt_width)
    if num_turns is not None:
        result |= _statistics("num_turns", torch.as_tensor(num_turns).float())
    return result


def critic_metrics(values: Tensor, returns: Tensor, response_mask: Tensor) -> dict[str, float]:
    """Return ``critic/values/*`` over valid tokens and ``critic/vf_explained_var`` = 1 - var(R - V) / (var(R) + 1e-5).

    All tensors are [B, T]; variances are unbiased. The explained variance is left out below two valid tokens.
    """
    valid = as_mask(response_mask)
    result = _statistics("critic/values", values[valid])
    if int(valid.sum()) >= 2:
        unexplained = masked_var((returns - values).float(), valid) / (masked_var(returns.float(), valid) + 1e-5)
        result["critic/vf_explained_var"] = 1 - unexplained.item()
    return result


def timing_metrics(
    timing: Mapping[str, float], *, prompt_lengths: Tensor, response_lengths: Tensor, num_devices: int
) -> dict[str, float]:
    """Describe how long the phases of a step took.

    Args:
        timing: seconds by phase; ``step`` is the whole.
        prompt_lengths: [B], tokens.
        response_lengths: [B], tokens.
        num_devices: devices of the run.

    Returns:
        ``timing_s/*``; ``timing_per_token_ms/*`` (generation per response token, the other phases per token, 0 if there
        are none); ``perf/total_num_tokens``, and with a ``step`` ``perf/time_per_step`` and ``perf/throughput``, in
        tokens a second and device.
    """
    responses = float(response_lengths.sum())
    total = responses + float(prompt_lengths.sum())
    result = {f"timing_s/{name}": float(seconds) for name, seconds in timing.items()}
    for phases, tokens in ((RESPONSE_PHASES, responses), (ALL_PHASES, total)):
        for name in phases:
            if name in timing:
                result[f"timing_per_token_ms/{name}"] = timing[name] * 1000 / tokens if tokens else 0.0
    result["perf/total_num_tokens"] = total
    if "step" in timing:
        seconds = float(timing["step"])
        result["perf/time_per_step"] = seconds
        result["perf/throughput"] = total / (seconds * num_devices) if seconds > 0 else 0.0
    return result


def rollout_difference_metrics(
    rollout_log_probs: Tensor, old_log_probs: Tensor, response_mask: Tensor
) -> dict[str, float]:
    """Compare the probabilities that the rollout reported with those the actor recomputes. All tensors are [B, T].

    Returns ``training/rollout_probs_diff_{valid,max,mean,std}`` (valid: 1 if there was anything to compare) and, from
    two valid tokens on, ``training/rollout_actor_probs_pearson_corr``, 0 where one side is constant.
    """
    valid = as_mask(response_mask)
    rollout, actor = rollout_log_probs[valid].float().exp(), old_log_probs[valid].float().exp()
    difference = (rollout - actor).abs()
    prefix = "training/rollout_probs_diff"
    if difference.numel() == 0:
        return {f"{prefix}_valid": 0.0}
    spread = difference.std(unbiased=True).item() if difference.numel() > 1 else 0.0
    result = {
        f"{prefix}_valid": 1.0,
        f"{prefix}_max": difference.max().item(),
        f"{prefix}_mean": difference.mean().item(),
        f"{prefix}_std": spread,
    }
    if difference.numel() > 1:
        left, right = rollout - rollout.mean(), actor - actor.mean()
        scale = (left.square().sum() * right.square().sum()).sqrt()
        result["training/rollout_actor_probs_pearson_corr"] = (left @ right / scale).item() if scale > 0 else 0.0
    return result


def sequence_length_metrics(lengths: Sequence[int], partitions: Sequence[Sequence[int]]) -> dict[str, float]:
    """Describe how tokens are spread over ranks, before and after balancing.

    Args:
        lengths: tokens of each row, in the order before balancing.
        partitions: for each rank the rows it got.

    Returns:
        ``global_seqlen/{min,max,minmax_diff}`` of the ranks' sums if rows were cut in order,
        ``balanced_{min,max}`` as they are, and ``mean``.
    """
    ranks = max(len(partitions), 1)
    share = -(-len(lengths) // ranks)
    before = [sum(lengths[rank * share : (rank + 1) * share]) for rank in range(ranks)]
    after = [sum(lengths[row] for row in rows) for rows in partitions] or [0]
    return {
        "global_seqlen/min": float(min(before)),
        "global_seqlen/max": float(max(before)),
        "global_seqlen/minmax_diff": float(max(before) - min(before)),
        "global_seqlen/balanced_min": float(min(after)),
        "global_seqlen/balanced_max": float(max(after)),
        "global_seqlen/mean": sum(lengths) / ranks,
    }


def variance_proxy_metrics(
    *,
    advantages: Tensor,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    response_mask: Tensor,
    gradient_norm: float | None = None,
    rollout_is_weights: Tensor | None = None,
) -> dict[str, float]:
    """Estimate how noisy the policy gradient is; all tensors are [B, T].

    With A the mean advantage of a row, W its sum of 1 - 2 pi + sum pi^2 over valid tokens and w its mean rollout weight
    (1 where there is none): ``variance_proxy/proxy2_total_power`` = mean(w^2 A^2 W), ``expected_a_squared`` =
    mean(A^2), ``expected_w`` = mean(W); with a gradient norm g also ``proxy1_signal_strength`` = g^2 and
    ``proxy3_pure_noise`` = (total power - signal) / (B - 1), at least 0.
    """
    valid = as_mask(response_mask)
    gain = masked_mean(advantages.float(), valid, -1)
    size = 1 - 2 * zero_masked(old_log_probs.float(), valid).exp() + sum_pi_squared.float()
    width = masked_sum(size, valid, -1).clamp(min=0)
    weight = torch.ones_like(gain)
    if rollout_is_weights is not None:
        weight = masked_mean(rollout_is_weights.float(), valid, -1)
    power = _mean(weight**2 * gain**2 * width)
    result = {
        "variance_proxy/proxy2_total_power": power,
        "variance_proxy/expected_a_squared": _mean(gain**2),
        "variance_proxy/expected_w": _mean(width),
    }
    if gradient_norm is not None:
        result["variance_proxy/proxy1_signal_strength"] = gradient_norm**2
        if gain.numel() > 1:
            result["variance_proxy/proxy3_pure_noise"] = max((power - gradient_norm**2) / (gain.numel() - 1), 0.0)
    return result


def reduce_metrics(ranks: Iterable[Mapping[str, Metric]]) -> dict[str, float]:
    """Reduce the metrics of data-parallel ranks to floats, each by its own reduction and never by its name.

    Raises ValueError if a metric is missing on a rank or declared with different reductions.
    """
    rows = list(ranks)
    names = sorted(set().union(*rows)) if rows else []
    missing = [name for name in names if any(name not in row for row in rows)]
    if missing:
        raise ValueError(f"Not all ranks measured {', '.join(missing)}.")
    return {name: float(Metric.reduce_over_ranks([row[name] for row in rows])) for name in names}


def _mean(values: Tensor) -> float:
    return values.float().mean().item() if values.numel() else 0.0


def _statistics(name: str, values: Tensor) -> dict[str, float]:
    plain = values.detach().float() if values.numel() else torch.zeros(1)
    return {f"{name}/mean": plain.mean().item(), f"{name}/max": plain.max().item(), f"{name}/min": plain.min().item()}


def _length_statistics(name: str, lengths: Tensor, width: int) -> dict[str, float]:
    return {**_statistics(name, lengths), f"{name}/clip_ratio": _mean((lengths == width).float())}
