"""The contract between text data and a model: a tokenizer with its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TextProcessor(Protocol):
    """Turns text into token ids and back. It is cheap to build without the model's weights."""

    @property
    def pad_token_id(self) -> int:
        """The id that fills batches."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a response."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; no special tokens are added."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``."""
        ...

    def apply_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Return the ids of a conversation of ``{"role", "content"}`` messages under the chat template."""
        ...

    def save_pretrained(self, directory: str | Path) -> None:
        """Write the tokenizer's files beside the model's."""
        ...
