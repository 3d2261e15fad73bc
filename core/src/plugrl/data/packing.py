"""Token ids to the tensors that every text model and engine works on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plugrl.errors import DataError

Tokens = Sequence[int] | Tensor
"""Token ids of one row."""


def pack_sequences(
    prompts: Sequence[Tokens],
    responses: Sequence[Tokens],
    *,
    pad_token_id: int,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> dict[str, Tensor]:
    """Pad prompts on the left and responses on the right.

    Args:
        prompts: B rows of token ids.
        responses: B rows of token ids, their end token included; a row may be empty.
        pad_token_id: fills the rest.
        prompt_length: width P; by default the longest prompt.
        response_length: width T; by default the longest response, at least 1.

    Returns:
        ``input_ids`` [B, P+T] int64, ``attention_mask`` [B, P+T] int64 (1 for tokens), ``response_mask`` [B, T] int64
        (1 for response tokens) and ``responses`` [B, T] int64.

    Raises:
        DataError: not as many responses as prompts, no rows, an empty prompt, or a row longer than its width.
    """
    if len(prompts) != len(responses) or not len(prompts):
        raise DataError(f"Cannot pack {len(prompts)} prompts with {len(responses)} responses.")
    left, left_mask = pad_rows(prompts, pad_token_id, prompt_length, left=True)
    right, right_mask = pad_rows(responses, pad_token_id, response_length)
    if not left_mask.any(dim=1).all():
        raise DataError("A prompt has no tokens; a model needs at least one to predict from.")
    return {
        "input_ids": torch.cat([left, right], dim=1),
        "attention_mask": torch.cat([left_mask, right_mask], dim=1),
        "response_mask": right_mask,
        "responses": right,
    }


def pad_rows(
    rows: Sequence[Tokens], value: int | float, width: int | None = None, *, left: bool = False
) -> tuple[Tensor, Tensor]:
    """Pad rows of numbers to a matrix [B, width] and its 0/1 mask; width defaults to the longest row, at least 1.

    Whole numbers give int64, a float ``value`` gives float32. Raises DataError if a row is longer than ``width``.
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths, default=0)
    size = max(longest, 1) if width is None else width
    if longest > size:
        raise DataError(f"Row {lengths.index(longest)} has {longest} tokens, more than the width {size}.")
    lists = [row.tolist() if isinstance(row, Tensor) else list(row) for row in rows]
    pads = [[value] * (size - length) for length in lengths]
    matrix = [pad + row if left else row + pad for row, pad in zip(lists, pads, strict=True)]
    dtype = torch.float32 if isinstance(value, float) else torch.long
    values = torch.tensor(matrix, dtype=dtype).reshape(len(rows), size)
    positions, counts = torch.arange(size), torch.tensor(lengths).unsqueeze(1)
    mask = positions >= size - counts if left else positions < counts
    return values, mask.long()
