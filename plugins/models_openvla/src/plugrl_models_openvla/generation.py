"""Tokens one after the other, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from plugrl_models_openvla.model import OpenVLAModel, Sequences

Choose = Callable[[torch.Tensor], torch.Tensor]
"""``(states [B, H]) -> ids [B]``: the next token of every row, from the state that predicts it."""


@torch.no_grad()
def generate(model: OpenVLAModel, sequences: Sequences, count: int, choose: Choose) -> torch.Tensor:
    """Return ``count`` tokens [B, count] after ``sequences``, the last of which is no padding in any row.

    ``choose`` is called ``count`` times; its first states are those of the last column of ``sequences``.
    """
    cache = model.new_cache()
    states = model.states(sequences, cache)[:, -1]
    mask, position = sequences.mask, sequences.positions[:, -1:]
    chosen = [choose(states)]
    for _ in range(count - 1):
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        position = position + 1
        states = model.next_states(model.embed_tokens(chosen[-1][:, None]), mask, position, cache)[:, -1]
        chosen.append(choose(states))
    return torch.stack(chosen, dim=1)
