"""Statistics over the valid tokens of a padded batch.

Masks are boolean or 0/1 of the shape of the values. What stands at a masked position, NaN included, reaches neither a
result nor a gradient: it is replaced before anything is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from plugrl.errors import UserError


def as_mask(mask: Tensor) -> Tensor:
    """Return the mask as booleans."""
    return mask if mask.dtype is torch.bool else mask != 0


def zero_masked(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``values`` with 0 at masked positions; no gradient flows there."""
    return torch.where(as_mask(mask), values, torch.zeros((), dtype=values.dtype, device=values.device))


def full_precision(values: Tensor) -> Tensor:
    """Return half-precision and integer tensors as float32; float32 and float64 as they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the sum over valid positions: 0-d, or along ``dim``."""
    valid = zero_masked(values, mask)
    return valid.sum() if dim is None else valid.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the mean over valid positions: 0-d, or along ``dim``; 0 where there are none."""
    count = as_mask(mask).sum() if dim is None else as_mask(mask).sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)


def masked_var(values: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Return the variance over all valid positions, 0-d.

    Raises:
        UserError: (a ValueError) no valid position, or fewer than two for the unbiased variance.
    """
    count = int(as_mask(mask).sum())
    if count < (2 if unbiased else 1):
        raise UserError(f"The variance of {count} valid token(s) is not defined. Is the response mask right?")
    square = (values - masked_mean(values, mask)) ** 2
    return masked_sum(square, mask) / (count - 1 if unbiased else count)


def whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
    """Return ``(values - mean) / sqrt(var + 1e-8)`` with statistics over the valid positions of the whole batch.

    Masked positions are transformed too; mask the result where that matters. ``shift_mean=False`` adds the mean back.

    Raises:
        UserError: (a ValueError) fewer than two valid positions.
    """
    mean = masked_mean(values, mask)
    whitened = (values - mean) * torch.rsqrt(masked_var(values, mask) + 1e-8)
    return whitened if shift_mean else whitened + mean


def place_rewards(scores: Tensor, response_mask: Tensor) -> Tensor:
    """Put the score of each row [B] on its last valid token: [B, T], 0 elsewhere; a row without tokens stays 0."""
    mask = as_mask(response_mask)
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, positions, -1).amax(dim=1)
    return zero_masked(full_precision(scores).unsqueeze(1).expand(mask.shape), positions == last.unsqueeze(1))


def return_to_go(token_rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Return the discounted sum of the rewards from each valid token on, [B, T], 0 at masked positions.

    Masked tokens (padding, observations) are skipped: they neither discount nor block.
    """
    valid, rewards = as_mask(mask), zero_masked(token_rewards, mask)
    if gamma == 1.0:
        return zero_masked(rewards.flip(1).cumsum(1).flip(1), valid)
    running = rewards.new_zeros(rewards.shape[0])
    steps = []
    for here, reward in zip(last_first(valid), last_first(rewards), strict=True):
        running = torch.where(here, reward + gamma * running, running)
        steps.append(running)
    return zero_masked(torch.stack(steps[::-1], dim=1), valid) if steps else rewards


def last_first(values: Tensor) -> list[Tensor]:
    """Return the columns [B] of a tensor [B, T] from the last to the first, each contiguous: walking is faster so."""
    return list(values.t().contiguous().unbind())[::-1]
