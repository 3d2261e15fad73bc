"""The loss of the value model."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from plugrl.algorithms.aggregation import Counts, aggregate
from plugrl.algorithms.formulas import share
from plugrl.algorithms.masking import as_mask, full_precision, masked_mean, zero_masked


def clipped_value_error(
    values: Tensor, old_values: Tensor, returns: Tensor, cliprange: float | None, huber_delta: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return half the squared error of each value, and that of the value clipped to ``cliprange`` around the old one.

    With ``huber_delta`` d the Huber error: e^2 / 2 below d, d (|e| - d / 2) from there on. Without a range both are
    the same.
    """

    def error(estimate: Tensor) -> Tensor:
        gap = estimate - returns.detach()
        if huber_delta is None:
            return 0.5 * gap**2
        size = gap.abs()
        return torch.where(size < huber_delta, 0.5 * gap**2, huber_delta * (size - 0.5 * huber_delta))

    plain = error(values)
    if cliprange is None:
        return plain, plain
    return plain, error(torch.clamp(values, old_values.detach() - cliprange, old_values.detach() + cliprange))


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    cliprange_value: float | None = 0.5,
    aggregation: str = "token-mean",
    **counts: Unpack[Counts],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared error of the values, with clipping: aggregate(0.5 max((v - R)^2, (clipped v - R)^2)).

    Args:
        values: [B, T] of the model in training, with gradient.
        old_values: [B, T] at sampling; v is clipped to within ``cliprange_value`` of them. None leaves it out.
        returns: [B, T], the targets R.
        mask: [B, T], valid tokens. Nothing at masked positions reaches loss or gradient.
        aggregation: mode of :func:`plugrl.algorithms.aggregate`, which explains ``counts`` and their errors.

    Returns:
        The loss, 0-d, and ``critic/vf_clipfrac`` (share of tokens where the clipped error is the larger) and
        ``critic/vpred_mean``, both 0-d masked means. Source: arXiv:1707.06347 as in verl.
    """
    valid = as_mask(mask)
    new, old, target = (zero_masked(full_precision(x), valid) for x in (values, old_values, returns))
    error, clipped = clipped_value_error(new, old, target, cliprange_value)
    loss = aggregate(torch.maximum(error, clipped), valid, aggregation, **counts)
    return loss, {
        "critic/vf_clipfrac": share(clipped > error, valid),
        "critic/vpred_mean": masked_mean(new.detach(), valid),
    }
