"""A micro-batch as a pipeline takes it: rows aligned to the left, of a length that all ranks can share.

B rows of S columns, N valid response tokens; see :class:`plugrl_models_hf.layout.TextLayout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from plugrl_engine_megatron.attention import own_columns
from plugrl_models_hf.layout import TextLayout


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """What one rank computes of a micro-batch.

    tokens: int64 [B, S / C] of this rank of a context of C. length: S. columns: int64 [S / C], its own; None: all.
    targets: int64 [N], the valid response tokens.
    place: int64 [M], where in this rank's states [S / C, B] flattened the predictors lie that it holds; of the N
    targets these are ``held`` int64 [M].
    """

    layout: TextLayout
    tokens: torch.Tensor
    length: int
    columns: torch.Tensor | None
    targets: torch.Tensor
    place: torch.Tensor
    held: torch.Tensor


def make_rows(inputs: Mapping[str, Any], *, multiple: int, context: int = 0, context_size: int = 1) -> Rows:
    """Lay out ``input_ids`` and ``attention_mask`` [B, P+T] and ``response_mask`` [B, T] for this rank."""
    layout = TextLayout.trim(inputs)
    ids = layout.input_ids[:, :-1]
    rows, width = ids.shape
    if layout.attention_mask is None:
        place = torch.arange(width, device=ids.device).expand(rows, width)
    else:
        valid = layout.attention_mask[:, :-1].bool()
        order = (~valid).long().argsort(dim=1, stable=True)
        ids = ids.gather(1, order)
        place = (valid.long().cumsum(dim=1) - 1).clamp_(min=0)
    length = -(-width // multiple) * multiple
    ids = F.pad(ids, (0, length - width))
    columns = own_columns(length, context_size, context).to(ids.device)
    # Of a column of the sequence, which of this rank's it is; -1: another rank's.
    index = torch.full((length,), -1, dtype=torch.int64, device=ids.device)
    index[columns] = torch.arange(len(columns), device=ids.device)
    window = index[place[:, -layout.num_response :]]
    flat = torch.where(window < 0, -1, window * rows + torch.arange(rows, device=ids.device).unsqueeze(1))
    wanted = flat.flatten().index_select(0, layout.picked)
    held = (wanted >= 0).nonzero().flatten()
    return Rows(
        layout=layout,
        tokens=ids.index_select(1, columns),
        length=length,
        columns=columns if context_size > 1 else None,
        targets=layout.tokens(),
        place=wanted.index_select(0, held),
        held=held,
    )
