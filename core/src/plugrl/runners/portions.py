"""The experience of a step while it is being made: portions that stages of different sizes read and add to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from plugrl.runners.experience import Experience

_OVER_ALL = ("input_ids", "attention_mask")
"""Tensors over prompt and response, [B, P+T]; all others that are matrices are over the response, [B, T]."""


class Portions:
    """Rows of ``total`` prompts in pieces of ``size`` prompts, each padded no wider than its own rows need."""

    def __init__(self, total: int, size: int, pad_token_id: int) -> None:
        self.total = total
        self.size = size
        self.pad_token_id = pad_token_id
        self._pieces: dict[int, Experience] = {}

    @classmethod
    def for_sizes(cls, total: int, sizes: Sequence[int], pad_token_id: int) -> Portions:
        """Return an empty store whose pieces are common parts of all these portions."""
        return cls(total, math.gcd(total, *sizes), pad_token_id)

    def put(self, start: int, stop: int, experience: Experience) -> None:
        """Keep the rows of the prompts ``start`` to ``stop``."""
        starts = range(start, stop, self.size)
        if len(starts) == 1:
            self._pieces[start] = experience
            return
        groups = torch.tensor(experience.group_ids)
        for first in starts:
            rows = ((groups >= first) & (groups < first + self.size)).nonzero().flatten()
            self._pieces[first] = _rows(experience, int(rows[0]), int(rows[-1]) + 1)

    @contextmanager
    def view(self, start: int, stop: int) -> Iterator[Experience]:
        """Give the rows of these prompts as one experience; what the block adds to it is kept."""
        pieces = [self._pieces[first] for first in range(start, min(stop, self.total), self.size)]
        if len(pieces) == 1:
            yield pieces[0]
            return
        whole = merge(pieces, self.pad_token_id)
        before, results = dict(whole.tensors), whole.results
        yield whole
        added = [name for name, tensor in whole.tensors.items() if before.get(name) is not tensor]
        row = 0
        for piece in pieces:
            width = piece.response_mask.shape[1]
            for name in added:
                rows = whole.tensors[name][row : row + len(piece)]
                piece.tensors[name] = rows[:, :width] if rows.dim() > 1 else rows
            # Only what was added: another stage may be adding to the same pieces.
            if whole.results is not results:
                piece.results = whole.results[row : row + len(piece)]
            row += len(piece)

    def whole(self) -> Experience:
        """Return all rows, as wide and in the order as if they had never been apart."""
        return merge([self._pieces[start] for start in sorted(self._pieces)], self.pad_token_id)


def merge(pieces: Sequence[Experience], pad_token_id: int) -> Experience:
    """Put experiences together, row after row, padded to the widest prompt and response; one alone is returned."""
    if len(pieces) == 1:
        return pieces[0]
    response = max(piece.response_mask.shape[1] for piece in pieces)
    prompt = max(_prompt_width(piece) for piece in pieces)
    names = [name for name in list(pieces[0].tensors) if all(name in piece.tensors for piece in pieces)]
    tensors = {}
    for name in names:
        parts = [_padded(piece, name, prompt, response, pad_token_id) for piece in pieces]
        tensors[name] = torch.cat(parts)
    return Experience(
        records=[record for piece in pieces for record in piece.records],
        group_ids=[group for piece in pieces for group in piece.group_ids],
        texts=[text for piece in pieces for text in piece.texts],
        weight_versions=[version for piece in pieces for version in piece.weight_versions],
        tensors=tensors,
        results=[result for piece in pieces for result in piece.results],
    )


def _prompt_width(piece: Experience) -> int:
    return piece.tensors["input_ids"].shape[1] - piece.response_mask.shape[1]


def _padded(piece: Experience, name: str, prompt: int, response: int, pad_token_id: int) -> Tensor:
    tensor = piece.tensors[name]
    if tensor.dim() < 2:
        return tensor
    left = prompt - _prompt_width(piece) if name in _OVER_ALL else 0
    right = response - piece.response_mask.shape[1]
    value = pad_token_id if name == "input_ids" else 0
    return torch.nn.functional.pad(tensor, (left, right), value=value)


def _rows(experience: Experience, start: int, stop: int) -> Experience:
    """Return rows of an experience, no wider than they need."""
    mask = experience.response_mask[start:stop]
    attention = experience.tensors["attention_mask"][start:stop]
    width = max(int(mask.sum(-1).max()), 1)
    prompt = int((attention.sum(-1) - mask.sum(-1)).max())
    old_prompt, old_width = _prompt_width(experience), experience.response_mask.shape[1]
    tensors = {}
    for name, tensor in experience.tensors.items():
        rows = tensor[start:stop]
        if name in _OVER_ALL:
            rows = rows[:, old_prompt - prompt : rows.shape[1] - (old_width - width)]
        elif rows.dim() > 1:
            rows = rows[:, :width]
        tensors[name] = rows
    return Experience(
        records=experience.records[start:stop],
        group_ids=experience.group_ids[start:stop],
        texts=experience.texts[start:stop],
        weight_versions=experience.weight_versions[start:stop],
        tensors=tensors,
        results=experience.results[start:stop],
    )
