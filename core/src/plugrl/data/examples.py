"""Prompts with their responses as samples of supervised training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from plugrl.data.packing import pack_sequences
from plugrl.data.tokenization import Tokenized


class TextExamples:
    """Tokenised prompts with responses. A batch has the text layout without ``responses``."""

    def __init__(self, tokenized: Tokenized, pad_token_id: int) -> None:
        assert tokenized.responses is not None
        self._prompts = tokenized.prompts
        self._responses = tokenized.responses
        self._pad = pad_token_id

    def __len__(self) -> int:
        return len(self._prompts)

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` [B, P+T] and ``response_mask`` [B, T] of the given rows."""
        packed = pack_sequences(
            [self._prompts[row] for row in rows], [self._responses[row] for row in rows], pad_token_id=self._pad
        )
        del packed["responses"]
        return packed
