"""The KL divergence from a reference policy, estimated at the sampled tokens, in the loss or in the reward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from plugrl.algorithms.masking import full_precision, masked_mean, zero_masked
from plugrl.errors import UserError, one_of


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return difference**2 / 2


def _k3(difference: Tensor) -> Tensor:
    # Bounded before exp: at far-apart policies the estimate would overflow and its gradient become NaN.
    negative = (-difference).clamp(-20.0, 20.0)
    return (negative.exp() - negative - 1).clamp(-10.0, 10.0)


_KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": _k1,
    "k1": _k1,
    "abs": torch.abs,
    "mse": _k2,
    "k2": _k2,
    "low_var_kl": _k3,
    "k3": _k3,
}

KINDS = tuple(_KINDS) + tuple(f"{name}+" for name in _KINDS)
"""Known estimators; each also with ``+``."""


def kl(log_probs: Tensor, ref_log_probs: Tensor, kind: str = "low_var_kl", mask: Tensor | None = None) -> Tensor:
    """Estimate the KL divergence at each token: same shape as ``log_probs``.

    With D = log_probs - ref_log_probs:

    - ``kl`` = ``k1``: D, unbiased, but its gradient is 0 in expectation: for the reward, not for the loss.
    - ``abs``: |D|.
    - ``mse`` = ``k2``: D^2 / 2, a little biased, with the right gradient in expectation.
    - ``low_var_kl`` = ``k3``: exp(-D) + D - 1, unbiased with low variance, though its gradient is not. D is clamped to
      +-20 and the result to +-10, with gradient 0 where clamped.
    - a suffix ``+``: the value of the kind with the gradient of k2 (= D), also where the value is clamped.

    ``mask`` gives 0 at masked positions, without gradient, whatever stands there.

    Raises:
        UserError: (a ValueError) an unknown kind; names are case-sensitive. Source: joschu.net/blog/kl-approx.html.
    """
    if kind not in KINDS:
        raise UserError(f'No KL estimator "{kind}". Known: {one_of(KINDS)}.')
    difference = full_precision(log_probs) - full_precision(ref_log_probs)
    if mask is not None:
        difference = zero_masked(difference, mask)
    value = _KINDS[kind.removesuffix("+")](difference)
    if not kind.endswith("+"):
        return value
    gradient = _k2(difference)
    return value.detach() + (gradient - gradient.detach())


def kl_penalty_in_reward(
    token_scores: Tensor,
    old_log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor,
    *,
    beta: float,
    kind: str = "kl",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Subtract ``beta`` x KL from the score of each valid token. All tensors are [B, T].

    Returns:
        The token rewards, 0 at masked positions, and the metrics ``actor/reward_kl_penalty`` (mean over rows of the
        row's mean KL: what a controller steers by) and ``actor/reward_kl_penalty_coeff`` (beta), 0-d.

    Raises:
        UserError: (a ValueError) an unknown kind.
    """
    divergence = kl(old_log_probs, ref_log_probs, kind, mask).detach()
    rewards = zero_masked(full_precision(token_scores) - beta * divergence, mask)
    return rewards, {
        "actor/reward_kl_penalty": masked_mean(divergence, mask, -1).mean(),
        "actor/reward_kl_penalty_coeff": torch.tensor(float(beta)),
    }
