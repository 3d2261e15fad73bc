"""Statistics over groups: the samples of one prompt, wherever they stand in the batch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from plugrl.algorithms.masking import full_precision, masked_sum, zero_masked
from plugrl.errors import UserError

GroupIds = Iterable[Hashable] | Tensor
"""One identifier a row: any hashables, or a tensor [B]. Rows of a group may be interleaved with others."""


@dataclass(frozen=True)
class Groups:
    """The grouping of a batch: the group number [B] and group size [B] of each row, numbered in order of appearance."""

    index: Tensor
    size: Tensor
    count: int

    @property
    def single(self) -> Tensor:
        """True [B] for the rows that are alone in their group."""
        return self.size == 1

    def total(self, values: Tensor) -> Tensor:
        """Return for each row the sum of ``values`` [B] or [B, T] over its group, in the same shape."""
        shape = (self.count, *values.shape[1:])
        return values.new_zeros(shape).index_add_(0, self.index, values)[self.index]

    def mean(self, values: Tensor) -> Tensor:
        """Return for each row the mean of ``values`` [B] over its group; exactly the value where all are equal.

        Without that, rounding alone would give equal rewards a spread, which a normalisation then blows up.
        """
        highest = values.new_full((self.count,), -torch.inf).scatter_reduce_(0, self.index, values, "amax")[self.index]
        return highest + self.total(values - highest) / self.size

    def std(self, values: Tensor) -> Tensor:
        """Return for each row the unbiased standard deviation [B] of its group; 1 in a group of one.

        Deviations are taken from the mean before they are squared: nearly equal rewards keep their digits.
        """
        square = self.total((values - self.mean(values)) ** 2)
        return torch.where(self.single, torch.ones_like(square), (square / (self.size - 1).clamp(min=1)).sqrt())


def find_groups(group_ids: GroupIds | None, batch: int, device: torch.device | None = None) -> Groups:
    """Number the groups of a batch.

    Raises:
        UserError: (a ValueError) no identifiers, or not one for each of ``batch`` rows.
    """
    if group_ids is None:
        raise UserError("This advantage estimator compares the samples of a prompt: give group_ids, one for each row.")
    # numpy arrays have tolist as well: their elements must become plain values to be equal by value.
    plain: Any = group_ids.tolist() if hasattr(group_ids, "tolist") else list(group_ids)
    if len(plain) != batch:
        raise UserError(f"{len(plain)} group_ids for {batch} rows.")
    numbers: dict[Hashable, int] = {}
    index = torch.tensor([numbers.setdefault(name, len(numbers)) for name in plain], dtype=torch.long, device=device)
    sizes = torch.bincount(index, minlength=len(numbers))
    return Groups(index=index, size=sizes[index], count=len(numbers))


def outcomes(token_rewards: Tensor, response_mask: Tensor) -> Tensor:
    """Return the outcome [B] of each row: the sum of its rewards over valid tokens, at least in float32."""
    return masked_sum(full_precision(token_rewards), response_mask, -1)


def broadcast(row_values: Tensor, response_mask: Tensor) -> Tensor:
    """Write the value of each row [B] on its valid tokens: [B, T], 0 elsewhere."""
    return zero_masked(row_values.unsqueeze(-1).expand(response_mask.shape), response_mask)
