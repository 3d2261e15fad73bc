"""Decoding with weights laid out for it; the keys and values of a prompt are shared by all its samples.

Scores against the prompt's keys are computed prompt by prompt for all its rows at once, those against a row's own keys
row by row, and one softmax runs over both: the prompt's keys are read once and never copied per sample. Prompts so
short that the extra operations cost more than the copies become part of the rows' own columns instead.

A rows, U prompts, M rows per prompt at most, P prompt columns, H hidden, G key-value heads, R query heads per key-value
head, D head size, V vocabulary, W columns of the window over a row's own keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import DynamicCache, PreTrainedModel

from plugrl_rollout_hf.decoder import Forward
from plugrl_rollout_hf.weights import Layer, Weights

_MIN_ROOM = 32
_SLOW_PRODUCT = 400
SHORT_PROMPT = 32


class FusedDecoder:
    """Prefills through the model's own forward, then steps with :class:`Weights`. See ``decoder.Decoder``."""

    def __init__(self, model: PreTrainedModel, weights: Weights) -> None:
        self._model = model
        self._weights = weights
        self._root_eps = {
            size: torch.tensor((size * weights.eps) ** 0.5, device=weights.embedding.device)
            for size in (weights.head_dim, weights.embedding.shape[1])
        }
        self._folded = weights.norm is None
        self._ones = torch.ones_like(weights.embedding[0, : weights.head_dim])
        # torch multiplies batches of very small matrices by a slow loop; a few closed columns keep them above that.
        self._quantum = _round_up(-(-_SLOW_PRODUCT // (weights.num_groups * weights.head_dim)), 8)

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See ``decoder.Decoder``."""
        cache = DynamicCache(config=self._model.config)
        padded = not bool(mask.all())
        positions = (mask.long().cumsum(dim=1) - 1).clamp_(min=0)
        backbone = Forward(self._model.base_model)
        states = backbone(ids, mask.long() if padded else None, positions if padded else None, cache)
        # The head of the model's own forward would get [U, 1, H] and, strided as it is, copy its matrix U times.
        logits = self._model.get_output_embeddings()(states.contiguous())
        # [U, G, D, P] and [U, G, P, D]; keys are transposed once, since every step multiplies by them.
        self._prompt_keys = [layer.keys.transpose(2, 3).contiguous() for layer in cache.layers]
        self._prompt_values = [layer.values.contiguous() for layer in cache.layers]
        self._bias = torch.zeros(ids.shape, dtype=logits.dtype, device=ids.device).masked_fill_(~mask, -torch.inf)
        self._padded = padded
        self._positions = positions[:, -1]
        return logits

    def fork(self, owner: torch.Tensor, max_new_tokens: int) -> None:
        """See ``decoder.Decoder``."""
        weights = self._weights
        self._owner = owner
        last = int(self._positions.max()) + max_new_tokens + 1
        columns = torch.arange(last, device=owner.device).unsqueeze(0)
        cos, sin = weights.rotary(weights.embedding[:1, None], columns)
        half = weights.head_dim // 2
        # rotate_half(x) * sin, with the minus sign moved into the table.
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        self._positions = self._positions[owner]
        self._length = 0
        self._own_keys: list[torch.Tensor] = []
        self._own_values: list[torch.Tensor] = []
        num_prompt = self._bias.shape[1]
        self._shared = num_prompt > SHORT_PROMPT
        # Added to scores against own columns: closed (-inf) until one is written, and where the prompt was padding.
        self._closed = self._bias.new_full((1, 1, 0), -torch.inf)
        self._grow(min(_MIN_ROOM, max_new_tokens) + (0 if self._shared else num_prompt))
        if self._shared:
            self._arrange()
        else:
            self._own_prompts()

    def keep(self, rows: torch.Tensor) -> None:
        """See ``decoder.Decoder``."""
        self._owner, self._positions = self._owner[rows], self._positions[rows]
        self._own_keys = [keys[rows] for keys in self._own_keys]
        self._own_values = [values[rows] for values in self._own_values]
        if self._closed.shape[0] > 1:
            self._closed = self._closed.unflatten(0, (-1, self._weights.num_kv_heads))[rows].flatten(0, 1)
        if not self._shared:
            self._look(self._window)
            return
        prompts, self._owner = self._owner.unique_consecutive(return_inverse=True)
        if prompts.numel() < self._bias.shape[0]:
            self._prompt_keys = [keys[prompts] for keys in self._prompt_keys]
            self._prompt_values = [values[prompts] for values in self._prompt_values]
            self._bias = self._bias[prompts]
        self._arrange()

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See ``decoder.Decoder``."""
        weights = self._weights
        if self._length == self._room:
            self._grow(2 * self._room)
        if self._length == self._window:
            self._look(self._window + self._quantum)
        self._closed[..., self._length] = 0.0
        self._positions = self._positions + 1
        cos, sin = self._cos[self._positions].unsqueeze(1), self._sin[self._positions].unsqueeze(1)
        states = F.embedding(tokens, weights.embedding)
        for index, layer in enumerate(weights.layers):
            projections = layer.qkv(self._norm(states, layer.input_norm))
            states = layer.out(self._attend(index, layer, projections, cos, sin), residual=states)
            gate, up = layer.gate_up(self._norm(states, layer.mlp_norm)).chunk(2, dim=-1)
            states = layer.down(layer.activation(gate).mul_(up), residual=states)
        self._length += 1
        return weights.head(self._norm(states, weights.norm))

    # ----------------------------------------------------------------- one layer
    def _norm(self, states: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Divide by the root mean square of the last axis and multiply by ``weight``.

        Without a weight, in as few operations as can be and without the factor sqrt(H).
        """
        if weight is not None:
            return F.rms_norm(states, states.shape[-1:], weight, self._weights.eps)
        length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        # sqrt(sum(x^2) + H * eps) as a hypotenuse; the factor sqrt(H) stands in the weights.
        return states / length.hypot_(self._root_eps[states.shape[-1]])

    def _attend(
        self, index: int, layer: Layer, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Return the attention output [A, G * R * D] of one layer, from its projections [A, (G * R + 2 * G) * D]."""
        heads, groups, dim = self._weights.num_kv_heads, self._weights.num_groups, self._weights.head_dim
        num_rows, num_queries = qkv.shape[0], heads * groups
        turned, values = qkv.view(num_rows, -1, dim).split((num_queries + heads, heads), dim=1)
        query, keys = self._turn(turned, layer.head_norm, cos, sin).split((num_queries, heads), dim=1)
        self._own_keys[index].select(2, self._length).copy_(keys)
        self._own_values[index].select(2, self._length).copy_(values)
        query = query.reshape(num_rows * heads, groups, dim)
        own_keys, own_values = self._views[index]

        if not self._shared:
            scores = torch.baddbmm(self._closing, query, own_keys)
            shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(qkv.dtype)
            return torch.bmm(shares, own_values).view(num_rows, -1)
        scores = self._against_prompts(query, index)
        own_scores = torch.baddbmm(self._closing, query, own_keys).view(*scores.shape[:4], self._window)
        shares = torch.softmax(torch.cat((scores, own_scores), dim=-1), dim=-1, dtype=torch.float32).to(qkv.dtype)
        shares, own_shares = shares.split((scores.shape[-1], self._window), dim=-1)
        mixed = torch.bmm(self._to_prompts(shares), self._flat_values[index])
        mixed = self._to_rows(mixed).reshape(num_rows * heads, groups, dim)
        return torch.baddbmm(mixed, own_shares.flatten(0, 2), own_values).view(num_rows, -1)

    def _turn(
        self, heads: torch.Tensor, weight: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Normalise queries and keys [A, G * R + G, D] in the families that do, and turn them by their positions."""
        if weight is not None:
            heads = self._norm(heads, None if self._folded else self._ones).mul_(weight)
        first, second = heads.chunk(2, dim=-1)
        return (heads * cos).addcmul_(torch.cat((second, first), dim=-1), sin)

    def _against_prompts(self, query: torch.Tensor, index: int) -> torch.Tensor:
        """Return the scores of ``query`` [A * G, R, D] against their prompts, as :meth:`_to_rows` arranges."""
        arranged = self._to_prompts(query.view(*self._lead, self._weights.num_kv_heads, *query.shape[1:]))
        if self._padded:
            return self._to_rows(torch.baddbmm(self._flat_bias, arranged, self._flat_keys[index]))
        return self._to_rows(torch.bmm(arranged, self._flat_keys[index]))

    # ----------------------------------------------------------------- rows and prompts
    def _own_prompts(self) -> None:
        """Write the prompts into the first own columns of their rows."""
        self._length = self._bias.shape[1]
        for index, (keys, values) in enumerate(zip(self._prompt_keys, self._prompt_values, strict=True)):
            self._own_keys[index][:, :, : self._length] = keys.transpose(2, 3)[self._owner]
            self._own_values[index][:, :, : self._length] = values[self._owner]
        self._closed[..., : self._length] = 0.0
        if self._padded:
            bias = self._bias[self._owner].repeat_interleave(self._weights.num_kv_heads, dim=0).unsqueeze(1)
            self._closed = self._closed.repeat(bias.shape[0], 1, 1)
            self._closed[..., : self._length] = bias
        self._prompt_keys, self._prompt_values = [], []
        self._look(_round_up(self._length, self._quantum))

    def _arrange(self) -> None:
        """Find the place of every row in the grid of U prompts by M rows.

        Rows that fill the grid are only viewed as one, ``_lead`` being (U, M); else they are copied into it and back,
        ``_lead`` being (A, 1).
        """
        num_prompts, num_rows = self._bias.shape[0], self._owner.numel()
        counts = self._owner.bincount(minlength=num_prompts)
        self._grid = (num_prompts, int(counts.max()))
        self._full = num_rows == num_prompts * self._grid[1]
        self._lead = self._grid if self._full else (num_rows, 1)
        starts = counts.cumsum(0) - counts
        rows = torch.arange(num_rows, device=self._owner.device)
        self._place = self._owner * self._grid[1] + rows - starts[self._owner]
        self._source = self._owner.new_zeros(num_prompts * self._grid[1]).index_copy_(0, self._place, rows)
        self._flat_keys = [keys.flatten(0, 1) for keys in self._prompt_keys]
        self._flat_values = [values.flatten(0, 1) for values in self._prompt_values]
        self._flat_bias = self._bias.repeat_interleave(self._weights.num_kv_heads, dim=0).unsqueeze(1)
        self._look(_round_up(max(self._length, 1), self._quantum))

    def _to_prompts(self, rows: torch.Tensor) -> torch.Tensor:
        """Arrange [*lead, G, R, X] as [U * G, M * R, X], so that a prompt meets all its rows in one product."""
        if not self._full:
            rows = rows.squeeze(1).index_select(0, self._source).unflatten(0, self._grid)
        num_prompts, width, heads, groups, last = rows.shape
        return rows.transpose(1, 2).reshape(num_prompts * heads, width * groups, last)

    def _to_rows(self, prompts: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`_to_prompts`."""
        groups = self._weights.num_groups
        rows = prompts.view(self._grid[0], -1, self._grid[1], groups, prompts.shape[-1]).transpose(1, 2)
        return rows if self._full else rows.flatten(0, 1).index_select(0, self._place).unsqueeze(1)

    # ----------------------------------------------------------------- own columns
    def _grow(self, room: int) -> None:
        """Make room for that many own columns per row."""
        weights = self._weights
        room = _round_up(room, self._quantum)
        shape = (self._owner.numel(), weights.num_kv_heads, room, weights.head_dim)
        for name in ("_own_keys", "_own_values"):
            fresh = [weights.embedding.new_zeros(shape) for _ in weights.layers]
            for buffer, old in zip(fresh, getattr(self, name) or fresh, strict=True):
                buffer[:, :, : self._length] = old[:, :, : self._length]
            setattr(self, name, fresh)
        self._room = room
        self._closed = F.pad(self._closed, (0, room - self._closed.shape[-1]), value=-torch.inf)
        self._look(_round_up(max(self._length, 1), self._quantum))

    def _look(self, window: int) -> None:
        """View the first ``window`` own columns, keys transposed: [A * G, D, W] and [A * G, W, D] per layer."""
        self._window = window
        self._closing = self._closed[..., :window]
        self._views = [
            (keys.flatten(0, 1)[:, :window].transpose(1, 2), values.flatten(0, 1)[:, :window])
            for keys, values in zip(self._own_keys, self._own_values, strict=True)
        ]


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
