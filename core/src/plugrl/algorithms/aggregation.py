"""How the losses of tokens become one number, so that neither micro-batches, padding nor ranks change the gradient.

A loss is computed on one micro-batch of one rank. Divided by *global* counts, the sum over micro-batches is the loss of
the whole batch; ``dp_size`` makes up for data parallelism, which averages the gradients of the ranks.
"""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from plugrl.algorithms.masking import as_mask, full_precision, masked_mean, masked_sum, zero_masked
from plugrl.errors import UserError, one_of

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
"""Known modes, verl's names."""


class Counts(TypedDict, total=False):
    """Keywords of :func:`aggregate` that describe the whole batch."""

    dp_size: int
    batch_num_tokens: int | float | Tensor | None
    global_batch_size: int | float | Tensor | None
    loss_scale_factor: float | None


def aggregate(
    values: Tensor,
    mask: Tensor,
    mode: str = "token-mean",
    *,
    dp_size: int = 1,
    batch_num_tokens: int | float | Tensor | None = None,
    global_batch_size: int | float | Tensor | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Aggregate per-token values [B, T] over the valid positions of ``mask`` [B, T] to a 0-d tensor.

    Args:
        mode: ``token-mean``: masked sum / ``batch_num_tokens``; ``token-sum``: masked sum; ``seq-mean-token-sum`` and
            ``seq-mean-token-mean``: the sum over rows with a valid token of the row's masked sum or mean, divided by
            ``global_batch_size``; ``seq-mean-token-sum-norm``: seq-mean-token-sum / ``loss_scale_factor``.
        dp_size: data-parallel ranks; the result is multiplied by it.
        batch_num_tokens: valid tokens over all ranks and micro-batches; by default those given here.
        global_batch_size: rows with a valid token over all ranks and micro-batches; by default those given here.
        loss_scale_factor: by default the padded width T.

    Raises:
        UserError: (a ValueError) an unknown mode, or ``dp_size`` > 1 without the global count the mode needs.
    """
    if mode not in MODES:
        raise UserError(f'No loss aggregation "{mode}". Known: {one_of(MODES)}.')
    values = full_precision(values)  # a sum over thousands of tokens in half precision would lose most of them
    if mode == "token-sum":
        return masked_sum(values, mask) * dp_size
    if mode == "token-mean":
        count = _count("batch_num_tokens", batch_num_tokens, as_mask(mask).sum(), mode, dp_size)
        return masked_sum(values, mask) / count * dp_size
    rows = as_mask(mask).any(dim=-1)
    count = _count("global_batch_size", global_batch_size, rows.sum(), mode, dp_size)
    per_row = masked_mean(values, mask, -1) if mode == "seq-mean-token-mean" else masked_sum(values, mask, -1)
    loss = zero_masked(per_row, rows).sum() / count * dp_size
    if mode == "seq-mean-token-sum-norm":
        return loss / (loss_scale_factor if loss_scale_factor is not None else max(mask.shape[-1], 1))
    return loss


def _count(name: str, given: int | float | Tensor | None, local: Tensor, mode: str, dp_size: int) -> Tensor | float:
    """Return the global count, or the local one on a single rank; never 0, so that an empty batch has loss 0."""
    if given is None:
        if dp_size > 1:
            raise UserError(f"Loss aggregation {mode} over {dp_size} ranks needs {name}, the count over all of them.")
        return local.clamp(min=1)
    return given.clamp(min=1) if isinstance(given, Tensor) else max(given, 1)
