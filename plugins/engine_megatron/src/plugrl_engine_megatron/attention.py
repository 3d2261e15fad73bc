"""Causal attention on torch's own kernels, also where a sequence is shared over ranks.

S columns on this rank, B rows, H query heads and G key-value heads on this rank, D head size. With context parallelism
of C ranks a sequence has 2C chunks, of which rank r holds chunks r and 2C-1-r, so that all have the same work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from plugrl_engine_megatron.library import MegatronModule, gather_from_sequence_parallel_region, parallel_state


class Norm(torch.nn.RMSNorm):
    """RMSNorm as megatron-core builds it; the library's own refuses sequence parallelism."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=_device())
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def _device() -> torch.device:
    from plugrl_engine_megatron.parallel import current_device

    return current_device()


class CausalAttention(MegatronModule):
    """The core attention of a layer. Rows are aligned to the left, so that causality hides their padding."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__(config=config)
        self._scale = softmax_scale

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None, **_: Any
    ) -> torch.Tensor:
        """Return the mixed values [S, B, H * D] of query [S, B, H, D], key and value [S, B, G, D]."""
        size = self.config.context_parallel_size
        if size == 1:
            mixed = self._attend(query, key, value, None)
        else:
            mixed = self._attend_over_ranks(query, key, value, size)
        return mixed.flatten(2)

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=self._scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        return mixed.permute(2, 0, 1, 3)

    def _attend_over_ranks(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int
    ) -> torch.Tensor:
        """Gather keys and values, whose gradients are scattered back; each chunk of queries sees those before it."""
        group, rank = parallel_state.get_context_parallel_group(), parallel_state.get_context_parallel_rank()
        chunk = query.shape[0] // 2
        keys, values = (
            _in_order(gather_from_sequence_parallel_region(tensor, group=group), size) for tensor in (key, value)
        )
        parts = []
        for index, own in zip((rank, 2 * size - 1 - rank), query.split(chunk), strict=True):
            seen = (index + 1) * chunk
            mask = torch.ones(chunk, seen, dtype=torch.bool, device=query.device).tril(index * chunk)
            parts.append(self._attend(own, keys[:seen], values[:seen], mask))
        return torch.cat(parts)


def _in_order(gathered: torch.Tensor, size: int) -> torch.Tensor:
    """Put the chunks of all ranks, one rank after the other, into the order of the sequence."""
    chunks = gathered.chunk(2 * size)
    order = [2 * index if index < size else 2 * (2 * size - 1 - index) + 1 for index in range(2 * size)]
    return torch.cat([chunks[position] for position in order])


def own_columns(length: int, size: int, rank: int) -> torch.Tensor:
    """Return the columns int64 [length / size] of a sequence that a rank of a context holds, in its order."""
    columns = torch.arange(length)
    if size == 1:
        return columns
    chunks = columns.chunk(2 * size)
    return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]))
