"""A KV cache of transformers whose layers grow in place instead of by concatenation at every step."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

_MIN_ROOM = 64


class GrowingLayer(DynamicLayer):
    """Keys and values [A, heads, length, size] as views of larger buffers; room doubles when it runs out."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append key and value states [A, heads, new, size]; return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < new:
            self._buffers = self._grown(key_states, value_states, old, new)
        keys, values = self._buffers
        keys[:, :, old:new].copy_(key_states)
        values[:, :, old:new].copy_(value_states)
        self.keys, self.values = keys[:, :, :new], values[:, :, :new]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replace row a by row ``beam_idx[a]``; rows may repeat or go."""
        self._buffers = None
        super().reorder_cache(beam_idx)

    def _grown(
        self, key_states: torch.Tensor, value_states: torch.Tensor, old: int, new: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        room = new if old == 0 else max(2 * old, new + _MIN_ROOM)
        buffers = []
        for states, held in ((key_states, self.keys), (value_states, self.values)):
            buffer = states.new_empty(*states.shape[:2], room, states.shape[-1])
            if old:
                buffer[:, :, :old].copy_(held)
            buffers.append(buffer)
        return buffers[0], buffers[1]


def growing_cache(config: PretrainedConfig) -> DynamicCache:
    """Return the cache that transformers would use for ``config``, its plain attention layers replaced by growing ones.

    Layers of other kinds (sliding windows, recurrent states) stay as transformers made them.
    """
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer
    return cache
