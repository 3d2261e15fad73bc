"""Advantages from the rewards of a scene alone: with a critic (gae), whitened (reinpp), as they are (raw), or from a
teacher (opd)."""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.algorithms.embodied.group_advantages import check_groups, spread
from plugrl.algorithms.embodied.moments import Moments, standardise
from plugrl.algorithms.embodied.rewards import episode_scores
from plugrl.algorithms.masking import as_mask, full_precision, masked_mean, return_to_go, zero_masked
from plugrl.errors import UserError


def gae(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    dones: Tensor,
    values: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    normalize_advantages: bool = True,
    normalize_returns: bool = False,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over steps, across episodes that follow each other. Source: arXiv:1506.02438.

    With d_t = r_t + gamma V_{t+1} (1 - end_{t+1}) - V_t: A_t = d_t + gamma lam (1 - end_{t+1}) A_{t+1}; returns A + V.

    Args:
        rewards: [S, B].
        mask: bool [S, B]; the entries that count in the statistics. Others are transformed too.
        dones: bool [S + 1, B], the episode ended before this step.
        values: [S + 1, B]; None is critic-free: gamma = lam = 1, advantages and returns are rewards to go.
        normalize_advantages: (A - mean) / (std + 1e-5) over the valid entries of the whole batch.
        normalize_returns: the same for the returns.

    Returns:
        Advantages and returns, [S, B].
    """
    exact, going_on = full_precision(rewards), (~as_mask(dones)).to(full_precision(rewards).dtype)
    states = torch.zeros_like(going_on) if values is None else full_precision(values)
    if values is None:
        gamma = lam = 1.0
    following = exact.new_zeros(exact.shape[1])
    steps = []
    for step in range(exact.shape[0] - 1, -1, -1):
        delta = exact[step] + gamma * states[step + 1] * going_on[step + 1] - states[step]
        following = delta + gamma * lam * going_on[step + 1] * following
        steps.append(following)
    advantages = torch.stack(steps[::-1]) if steps else exact.clone()
    returns = advantages + states[:-1]
    if normalize_advantages:
        advantages = standardise(advantages, Moments.of(advantages, mask))
    if normalize_returns:
        returns = standardise(returns, Moments.of(returns, mask))
    return advantages, returns


def reinpp(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    dones: Tensor,
    group_size: int = 1,
    valid: Tensor | None = None,
    use_reinpp_baseline: bool = False,
    kl_beta: float = 0.0,
    kl: Tensor | None = None,
) -> tuple[Tensor, None]:
    """REINFORCE++: the score on the last valid step, minus the divergence on all, to go, whitened. arXiv:2501.03262.

    Args:
        rewards: [S, B]; the score is their sum up to the first end.
        mask: bool [S, B].
        dones: bool [S + 1, B].
        group_size: scenes of a group, at least 2 with a baseline.
        valid: bool [B]; others count neither in a baseline nor in the statistics.
        use_reinpp_baseline: subtract the mean score of the group.
        kl_beta: weight of ``kl`` [S, B], the divergence from the reference.

    Returns:
        (x - mean) / sqrt(max(var, 1e-8)) with the biased variance over valid steps, [S, B], 0 elsewhere; None.

    Raises:
        UserError: (a ValueError) groups of one with a baseline, or scenes that cannot be cut into groups.
    """
    scenes = rewards.shape[1]
    steps = torch.ones_like(rewards, dtype=torch.bool) if mask is None else as_mask(mask)
    counted = torch.ones(scenes, dtype=torch.bool, device=rewards.device) if valid is None else as_mask(valid)
    steps = steps & counted.unsqueeze(0)
    scores = episode_scores(rewards, dones)
    if use_reinpp_baseline:
        check_groups("reinpp with use_reinpp_baseline", scenes, group_size)
        grouped = counted.reshape(-1, group_size)
        baseline = masked_mean(scores.reshape(-1, group_size), grouped, dim=1)
        scores = scores - baseline.repeat_interleave(group_size)
    number = torch.arange(rewards.shape[0], device=rewards.device).unsqueeze(1)
    last = torch.where(steps, number, -1).amax(dim=0, keepdim=True)
    placed = zero_masked(scores.unsqueeze(0).expand(rewards.shape), steps & (number == last))
    if kl_beta and kl is not None:
        placed = placed - kl_beta * zero_masked(full_precision(kl), steps)
    to_go = return_to_go(placed.t(), steps.t()).t()
    moments = Moments.of(to_go, steps)
    return zero_masked((to_go - moments.mean) / max(moments.variance, 1e-8) ** 0.5, steps), None


def raw(
    rewards: Tensor,
    mask: Tensor | None = None,
    *,
    dones: Tensor,
    normalize_advantages: bool = True,
) -> tuple[Tensor, None]:
    """The score of each episode on its valid steps, on demand (x - mean) / (std + 1e-5) over them: [S, B]."""
    advantages = spread(episode_scores(rewards, dones), rewards, mask)
    if normalize_advantages:
        advantages = standardise(advantages, Moments.of(advantages, mask))
        advantages = advantages if mask is None else zero_masked(advantages, mask)
    return advantages, None


def opd(
    rewards: Tensor | None,
    mask: Tensor | None = None,
    *,
    log_probs: Tensor,
    teacher_log_probs: Tensor,
    num_action_chunks: int = 1,
) -> tuple[Tensor, None]:
    """On-policy distillation: how much more likely the teacher finds each token, teacher - student.

    Args:
        rewards: not used.
        mask: not used; the loss leaves masked entries out.
        log_probs: [..., C D] of the policy that acted.
        teacher_log_probs: the same of the teacher.
        num_action_chunks: C.

    Returns:
        [..., C, D], not normalised; None.

    Raises:
        UserError: (a ValueError) different shapes, or tokens that cannot be cut into so many actions.
    """
    if log_probs.shape != teacher_log_probs.shape:
        raise UserError(
            f"opd compares log-probabilities of the same tokens: the policy's are {tuple(log_probs.shape)}, "
            f"the teacher's {tuple(teacher_log_probs.shape)}."
        )
    tokens = log_probs.shape[-1]
    if num_action_chunks < 1 or tokens % num_action_chunks:
        raise UserError(f"opd: {tokens} tokens cannot be cut into num_action_chunks = {num_action_chunks} actions.")
    gap = full_precision(teacher_log_probs) - full_precision(log_probs)
    return gap.reshape(*gap.shape[:-1], num_action_chunks, tokens // num_action_chunks), None
