"""From instructions to token ids: the prompt of OpenVLA, and the layout in which image patches can follow its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from plugrl.errors import ConfigError, DataError

SPACE_PIECE = "▁"
"""How tokenizers of the SentencePiece family write a space; published models end every prompt with this token."""

_MEMORY = 4096
"""How many instructions an encoder keeps the ids of."""


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts of one length, int64 [B, L] both: the start at column 0, then padding, then the rest."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor


def prompt_text(task: str) -> str:
    """Return the prompt of an instruction; it ends with a space."""
    return f"In: What action should the robot take to {task.lower()}?\nOut: "


def pad_prompts(rows: Sequence[Sequence[int]], max_length: int, pad_id: int, bos_id: int) -> Prompts:
    """Put rows of ids, each with ``bos_id`` first, into a batch of ``max_length`` columns.

    Padding stands between the first token and the second, since patches are inserted after the first. Raises
    ConfigError for a longer row, DataError for one that does not begin with ``bos_id``.
    """
    ids = torch.full((len(rows), max_length), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        if len(row) > max_length:
            raise ConfigError(
                f"model.max_prompt_length: {max_length} is too short for a prompt of {len(row)} tokens; prompts are "
                "never cut."
            )
        if not row or row[0] != bos_id:
            raise DataError(f"prompt {number} does not begin with the first token {bos_id}: {list(row[:5])}.")
        ids[number, 0], mask[number, 0] = bos_id, 1
        if len(row) > 1:
            ids[number, 1 - len(row) :] = torch.tensor(row[1:])
            mask[number, 1 - len(row) :] = 1
    return Prompts(ids, mask)


def trimmed(prompts: Prompts) -> Prompts:
    """Leave out the columns that are padding in every row: they change nothing and cost time."""
    used = prompts.attention_mask.any(dim=0)
    used[0] = True
    return prompts if bool(used.all()) else Prompts(prompts.input_ids[:, used], prompts.attention_mask[:, used])


class PromptEncoder:
    """Encodes instructions with the tokenizer of a checkpoint.

    Args:
        tokenizer: a tokenizer of transformers; its own ids of first token, padding and lone space are used.
        max_length: columns of the batches; a longer prompt is an error.
        pad_id: id of the padding where the configuration of the model says so; else the tokenizer's.
    """

    def __init__(self, tokenizer: Any, max_length: int, pad_id: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.bos_id = _required(tokenizer.bos_token_id, "bos_token")
        self.pad_id = _required(tokenizer.pad_token_id if pad_id is None else pad_id, "pad_token")
        self.space_id = tokenizer.get_vocab().get(SPACE_PIECE)
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, tasks: Sequence[str]) -> Prompts:
        """Return the prompts of a batch of instructions. Raises ConfigError as :func:`pad_prompts`."""
        return pad_prompts([self.ids(task) for task in tasks], self.max_length, self.pad_id, self.bos_id)

    def ids(self, task: str) -> tuple[int, ...]:
        """Return the ids of one prompt, unpadded: the first token, the text, and the lone space at its end."""
        found = self._known.get(task)
        if found is None:
            ids = [int(number) for number in self.tokenizer.encode(prompt_text(task), add_special_tokens=False)]
            if self.space_id is not None and ids[-1:] != [self.space_id]:
                ids.append(self.space_id)
            if len(self._known) >= _MEMORY:
                self._known.clear()
            unknown = getattr(self.tokenizer, "unk_token_id", None)
            if unknown is not None and unknown in ids:
                raise DataError(f"the tokenizer has no token for a word of this instruction: {task!r}.")
            found = self._known[task] = (self.bos_id, *ids)
        return found


def _required(token_id: Any, name: str) -> int:
    if token_id is None:
        raise ConfigError(f"model.tokenizer: the tokenizer has no {name}, and prompts need one.")
    return int(token_id)
