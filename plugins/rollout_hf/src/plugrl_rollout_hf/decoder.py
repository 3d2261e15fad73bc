"""Stepping a model through its own forward, with prompts prefilled once and rows that come and go.

U distinct prompts, P prompt columns (left-padded), A rows (samples) in the batch, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from plugrl_rollout_hf.cache import growing_cache


class Decoder(Protocol):
    """One batch on its way: prefill, fork, then steps; rows that are done are dropped by ``keep``."""

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Read prompts ``ids`` [U, P] where ``mask`` (bool [U, P]) holds; return next-token logits [U, V]."""
        ...

    def fork(self, owner: torch.Tensor, max_new_tokens: int) -> None:
        """Make row a a continuation of prompt ``owner[a]``; ``owner`` [A] ascends."""
        ...

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append one token per row, ``tokens`` [A]; return next-token logits [A, V]."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Keep the rows with these ascending indices [A'] and drop the others."""
        ...


class Forward:
    """A model's forward under the keyword names its version of transformers and its family use."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        names = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self._cache_key = "cache" if "cache" in names else "past_key_values"
        self._takes_positions = "position_ids" in names
        self._takes_last = "logits_to_keep" in names

    def __call__(
        self, ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        """Run ids [A, S] on top of ``cache``; return the last column's logits [A, V] (a backbone's: states [A, H]).

        mask [A, past + S] and positions [A, S] are None when no column is padding.
        """
        inputs: dict[str, Any] = {"input_ids": ids, "use_cache": True, self._cache_key: cache}
        if mask is not None:
            inputs["attention_mask"] = mask
        if positions is not None and self._takes_positions:
            inputs["position_ids"] = positions
        if self._takes_last:
            inputs["logits_to_keep"] = 1
        outputs = self.model(**inputs)
        return (outputs.logits if "logits" in outputs else outputs.last_hidden_state)[:, -1]


class HFDecoder:
    """Steps through the model's own forward: right for every causal language model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._forward = Forward(model)
        self._cache = growing_cache(model.config)
        self._mask: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See :class:`Decoder`."""
        if bool(mask.all()):
            return self._forward(ids, None, None, self._cache)
        self._mask = mask.long()
        positions = (self._mask.cumsum(dim=1) - 1).clamp_(min=0)
        self._positions = positions[:, -1:]
        return self._forward(ids, self._mask, positions, self._cache)

    def fork(self, owner: torch.Tensor, max_new_tokens: int) -> None:
        """See :class:`Decoder`."""
        self.keep(owner)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See :class:`Decoder`."""
        if self._mask is None or self._positions is None:
            return self._forward(tokens.unsqueeze(1), None, None, self._cache)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        self._positions = self._positions + 1
        return self._forward(tokens.unsqueeze(1), self._mask, self._positions, self._cache)

    def keep(self, rows: torch.Tensor) -> None:
        """See :class:`Decoder`."""
        self._cache.reorder_cache(rows)
        if self._mask is not None and self._positions is not None:
            self._mask, self._positions = self._mask[rows], self._positions[rows]
