"""The text layout of a micro-batch, cut down to what a forward pass needs.

B rows, P prompt columns (left-padded), T response columns (right-padded); S columns remain after trimming, R of them
responses. N is the number of valid response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class TextLayout:
    """A batch without the columns that are padding in every row.

    input_ids [B, S]; attention_mask [B, S] or None when nothing is padding; position_ids [B, S] or None likewise;
    mask bool [B, R], the response tokens that count; num_columns T of the untrimmed response.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor | None
    mask: torch.Tensor
    num_columns: int

    @classmethod
    def trim(cls, inputs: Mapping[str, Any]) -> TextLayout:
        """Cut ``input_ids`` and ``attention_mask`` [B, P+T] and ``response_mask`` [B, T].

        At least one response column stays, so that a batch without a response still has a graph.
        """
        ids, attention, mask = inputs["input_ids"], inputs["attention_mask"].bool(), inputs["response_mask"].bool()
        num_columns = mask.shape[1]
        num_prompt = ids.shape[1] - num_columns
        if num_prompt < 1:
            raise ValueError("A prompt needs at least one column: the first response token is predicted from it.")
        used = attention.any(dim=0)
        used[num_prompt:] |= mask.any(dim=0)
        columns = used.nonzero().flatten().tolist() or [num_prompt]
        first, last = min(columns[0], num_prompt - 1), max(columns[-1] + 1, num_prompt + 1)
        ids, attention, mask = ids[:, first:last], attention[:, first:last], mask[:, : last - num_prompt]
        # A row that is all padding (filler) attends to itself: softmax over nothing would give NaN gradients.
        attention = attention | ~attention.any(dim=1, keepdim=True)
        if bool(attention.all()):
            return cls(input_ids=ids, attention_mask=None, position_ids=None, mask=mask, num_columns=num_columns)
        positions = (attention.long().cumsum(dim=1) - 1).clamp_(min=0)
        return cls(
            input_ids=ids,
            attention_mask=attention.long(),
            position_ids=positions,
            mask=mask,
            num_columns=num_columns,
        )

    def model_inputs(self) -> dict[str, Any]:
        """Return the keyword arguments of a Hugging Face forward, without those that its defaults already mean.

        The last column predicts nothing, so it is left out.
        """
        inputs: dict[str, Any] = {"input_ids": self.input_ids[:, :-1], "use_cache": False}
        if self.attention_mask is not None and self.position_ids is not None:
            inputs |= {"attention_mask": self.attention_mask[:, :-1], "position_ids": self.position_ids[:, :-1]}
        return inputs

    @property
    def num_response(self) -> int:
        """R: the response columns that remain."""
        return self.mask.shape[1]

    @property
    def picked(self) -> torch.Tensor:
        """Flat indices [N] of the valid response tokens in [B, R]; the first one when there is none."""
        found = self.mask.flatten().nonzero().flatten()
        return found if found.numel() else found.new_zeros(1)

    def predictors(self, states: torch.Tensor) -> torch.Tensor:
        """Pick from ``states`` [B, S - 1, ...] those that predict the valid response tokens: [N, ...]."""
        window = states[:, -self.num_response :]
        return window.reshape(-1, *window.shape[2:]).index_select(0, self.picked)

    def tokens(self) -> torch.Tensor:
        """Return the valid response tokens [N]."""
        return self.input_ids[:, -self.num_response :].reshape(-1).index_select(0, self.picked)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Put values [N] of the valid response tokens at their places in [B, T], zero elsewhere."""
        num_rows = self.mask.shape[0]
        if not bool(self.mask.any()):
            values = values * 0
        flat = values.new_zeros(num_rows * self.num_response).index_copy(0, self.picked, values)
        grid = flat.view(num_rows, self.num_response)
        return torch.nn.functional.pad(grid, (0, self.num_columns - self.num_response))
