"""How the elements of a loss become one number that neither micro-batches, ranks nor the shape of a mask change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plugrl.algorithms.aggregation import aggregate
from plugrl.algorithms.masking import as_mask
from plugrl.errors import UserError


def pad_dims(values: Tensor, dims: int) -> Tensor:
    """Append dimensions of size 1 until there are ``dims``."""
    return values.reshape(values.shape + (1,) * (dims - values.dim()))


def match(values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Bring values and mask, [B, ...] each, to one shape; the one with fewer dimensions gets more at its end.

    A mask that is wider than the values weighs a row by its valid entries. None is a mask of ones.

    Raises:
        UserError: (a ValueError) shapes that do not fit.
    """
    if mask is None:
        return values, torch.ones_like(values, dtype=torch.bool)
    dims = max(values.dim(), mask.dim())
    try:
        shaped, valid = torch.broadcast_tensors(pad_dims(values, dims), pad_dims(as_mask(mask), dims))
    except RuntimeError as error:
        raise UserError(f"A mask {list(mask.shape)} does not fit values {list(values.shape)}.") from error
    return shaped, valid


def expand_to(values: Tensor, like: Tensor, what: str) -> Tensor:
    """Expand [B, ...] to the shape of ``like``.

    Raises:
        UserError: (a ValueError) it has more entries than ``like``: what is compared is coarser than what is known.
    """
    dims = max(values.dim(), like.dim())
    padded, target = pad_dims(values, dims), pad_dims(like, dims).shape
    if any(size not in (1, wanted) for size, wanted in zip(padded.shape, target, strict=True)):
        raise UserError(
            f"{what} {list(values.shape)} are finer than the log-probabilities {list(like.shape)}. "
            "With algorithm.logprob_type chunk_level, set algorithm.reward_type to chunk_level as well."
        )
    return padded.expand(target).reshape(like.shape)


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """The mean over the valid elements of the whole batch, of which a micro-batch is given: ``mean(values, mask)``.

    Every element of a micro-batch counts 1 / (number of valid elements in the whole batch), so that the losses of the
    micro-batches add up to the loss of the batch.

    dp_size: data-parallel ranks; multiplied, since engines average gradients over them.
    batch_num_tokens: valid entries of the loss mask (rows, without one) over all ranks and micro-batches; None: here.
    batch_rows: rows of the whole batch, masked or not, for the length-normalised mean; None: the rows here.
    mask_sum: [B, C] or [B, 1], valid steps of each row's episode, with ``max_episode_steps``: then elements count
        mask x max_episode_steps / mask_sum, averaged over *all* elements, so that short episodes weigh as much as long.
    """

    dp_size: int = 1
    batch_num_tokens: int | float | Tensor | None = None
    batch_rows: int | float | None = None
    mask_sum: Tensor | None = None
    max_episode_steps: int | None = None

    def __call__(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mean of values [B, ...] over the valid entries of ``mask``, length-normalised if so set; 0-d."""
        if self.mask_sum is None or self.max_episode_steps is None:
            return self.plain(values, mask)
        shaped, valid = match(values, mask)
        lengths = pad_dims(self.mask_sum.to(shaped), shaped.dim()).clamp(min=1)
        rows = shaped.shape[0]
        count = shaped.numel() / max(rows, 1) * (rows if self.batch_rows is None else self.batch_rows)
        return self._mean(shaped * (self.max_episode_steps / lengths), valid, count)

    def plain(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mean of values [B, ...] over the valid entries of ``mask``, however long episodes are; 0-d."""
        shaped, valid = match(values, mask)
        entries = shaped.shape[0] if mask is None else mask.numel()
        count = self.batch_num_tokens
        if count is not None:
            count = count * (shaped.numel() / max(entries, 1))
        return self._mean(shaped, valid, count)

    def _mean(self, values: Tensor, valid: Tensor, count: float | Tensor | None) -> Tensor:
        return aggregate(values, valid, "token-mean", dp_size=self.dp_size, batch_num_tokens=count)
