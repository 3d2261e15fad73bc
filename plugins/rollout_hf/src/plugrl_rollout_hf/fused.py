"""Decoding with a copy of the weights laid out for it, for the plain decoder families.

One step of a small batch is bound by reading weights and by the overhead of operations. Here the three projections of
attention and the two of the MLP are one matrix each, residual additions ride on the products, large matrices are
packed, and the keys of a prompt are read once for all its samples: they are never copied per sample.

A rows, U prompts, M rows per prompt at most, P prompt columns, t generated columns, H hidden, G key-value heads,
R query heads per key-value head, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import DynamicCache, PreTrainedModel

from plugrl_rollout_hf.decoder import Forward
from plugrl_rollout_hf.linear import Linear

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_MIN_ROOM = 32


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The weights of one decoder layer. Norms of queries and keys are None in families without them."""

    input_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: Linear


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All weights of a model, laid out for decoding; built anew whenever the model's weights change."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    eps: float
    head: Linear
    rotary: torch.nn.Module
    num_kv_heads: int
    num_groups: int
    head_dim: int
    scaling: float


def supports(model: PreTrainedModel) -> bool:
    """Whether the model's family and configuration are those that :class:`FusedDecoder` computes."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) if not hasattr(config, "layer_types") else None
    return (
        type(model).__name__ in FAMILIES
        and type(model).__module__.startswith("transformers.models.")
        and kinds == {"full_attention"}
        and not sliding
        and rope.get("rope_type", "default") in _STATIC_ROPE
    )


def lay_out(model: PreTrainedModel, *, pack: bool) -> Weights:
    """Copy the weights of a supported model into the layout for decoding."""
    backbone = model.base_model
    attention = backbone.layers[0].self_attn
    return Weights(
        embedding=backbone.embed_tokens.weight.detach(),
        layers=tuple(_layer(block, pack) for block in backbone.layers),
        norm=backbone.norm.weight.detach(),
        eps=backbone.norm.variance_epsilon,
        head=Linear.of([model.get_output_embeddings()], pack=pack),
        rotary=backbone.rotary_emb,
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        num_groups=attention.num_key_value_groups,
        head_dim=attention.head_dim,
        scaling=attention.scaling,
    )


def _layer(block: torch.nn.Module, pack: bool) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return Layer(
        input_norm=block.input_layernorm.weight.detach(),
        qkv=Linear.of([attention.q_proj, attention.k_proj, attention.v_proj], pack=pack),
        q_norm=None if q_norm is None else q_norm.weight.detach(),
        k_norm=None if k_norm is None else k_norm.weight.detach(),
        out=Linear.of([attention.o_proj], pack=pack),
        mlp_norm=block.post_attention_layernorm.weight.detach(),
        gate_up=Linear.of([mlp.gate_proj, mlp.up_proj], pack=pack),
        activation=mlp.act_fn,
        down=Linear.of([mlp.down_proj], pack=pack),
    )


class FusedDecoder:
    """Prefills through the model's own forward, then steps with :class:`Weights`. See ``decoder.Decoder``."""

    def __init__(self, model: PreTrainedModel, weights: Weights) -> None:
        self._model = model
        self._weights = weights
        self._length = 0

    def prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """See ``decoder.Decoder``."""
        cache = DynamicCache(config=self._model.config)
        forward = Forward(self._model)
        padded = not bool(mask.all())
        positions = (mask.long().cumsum(dim=1) - 1).clamp_(min=0)
        logits = forward(ids, mask.long() if padded else None, positions if padded else None, cache)
        # Keys transposed once: every step multiplies by them.
        self._prompts = [(layer.keys.transpose(2, 3).contiguous(), layer.values.contiguous()) for layer in cache.layers]
        self._bias = None
        if padded:
            self._bias = torch.zeros_like(mask, dtype=logits.dtype).masked_fill_(~mask, -torch.inf)[:, None, None]
        self._positions = positions[:, -1]
        return logits

    def fork(self, owner: torch.Tensor, max_new_tokens: int) -> None:
        """See ``decoder.Decoder``."""
        self._owner = owner
        last = int(self._positions.max()) + max_new_tokens + 1
        columns = torch.arange(last, device=owner.device).unsqueeze(0)
        cos, sin = self._weights.rotary(self._weights.embedding[:1, None], columns)
        half = self._weights.head_dim // 2
        # rotate_half(x) * sin, with the minus sign moved into the table.
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        self._positions = self._positions[owner]
        self._room = 0
        self._own: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._grow(min(_MIN_ROOM, max_new_tokens))
        self._arrange()

    def keep(self, rows: torch.Tensor) -> None:
        """See ``decoder.Decoder``."""
        self._owner, self._positions = self._owner[rows], self._positions[rows]
        self._own = [(keys[rows], values[rows]) for keys, values in self._own]
        prompts, self._owner = self._owner.unique_consecutive(return_inverse=True)
        if prompts.numel() < self._prompts[0][0].shape[0]:
            self._prompts = [(keys[prompts], values[prompts]) for keys, values in self._prompts]
            self._bias = None if self._bias is None else self._bias[prompts]
        self._arrange()

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """See ``decoder.Decoder``."""
        if self._length == self._room:
            self._grow(2 * self._room)
        weights = self._weights
        self._positions = self._positions + 1
        cos, sin = self._cos[self._positions].unsqueeze(1), self._sin[self._positions].unsqueeze(1)
        states = F.embedding(tokens, weights.embedding)
        size = (states.shape[-1],)
        for index, layer in enumerate(weights.layers):
            hidden = F.rms_norm(states, size, layer.input_norm, weights.eps)
            states = layer.out(self._attend(index, layer, layer.qkv(hidden), cos, sin), residual=states)
            hidden = F.rms_norm(states, size, layer.mlp_norm, weights.eps)
            gate, up = layer.gate_up(hidden).chunk(2, dim=-1)
            states = layer.down(layer.activation(gate).mul_(up), residual=states)
        self._length += 1
        return weights.head(F.rms_norm(states, size, weights.norm, weights.eps))

    def _attend(
        self, index: int, layer: Layer, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Return the attention output [A, G * R * D] of one layer, from its projections [A, (G * R + 2 * G) * D]."""
        weights, end = self._weights, self._length + 1
        heads, groups, dim = weights.num_kv_heads, weights.num_groups, weights.head_dim
        split = qkv.view(qkv.shape[0], -1, dim)
        turned = self._rotate(self._normalise(layer, split[:, : heads * (groups + 1)]), cos, sin)
        own_keys, own_values = self._own[index]
        own_keys[:, :, self._length] = turned[:, heads * groups :]
        own_values[:, :, self._length] = split[:, heads * (groups + 1) :]
        query = turned[:, : heads * groups].reshape(-1, heads, groups, dim).mul_(weights.scaling)

        prompt_keys, prompt_values = self._prompts[index]
        grid = self._to_grid(query)
        scores = grid @ prompt_keys
        if self._bias is not None:
            scores += self._bias
        num_prompt = prompt_keys.shape[-1]
        scores = torch.cat((self._from_grid(scores), query @ own_keys[:, :, :end].transpose(2, 3)), dim=-1)
        shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        mixed = self._from_grid(self._to_grid(shares[..., :num_prompt]) @ prompt_values)
        return (mixed + shares[..., num_prompt:] @ own_values[:, :, :end]).flatten(1)

    def _normalise(self, layer: Layer, heads: torch.Tensor) -> torch.Tensor:
        """Apply the norms of queries and keys [A, G * R + G, D] in the families that have them."""
        if layer.q_norm is None or layer.k_norm is None:
            return heads
        num_queries = self._weights.num_kv_heads * self._weights.num_groups
        size, eps = (self._weights.head_dim,), self._weights.eps
        return torch.cat(
            (
                F.rms_norm(heads[:, :num_queries], size, layer.q_norm, eps),
                F.rms_norm(heads[:, num_queries:], size, layer.k_norm, eps),
            ),
            dim=1,
        )

    def _rotate(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Turn queries and keys [A, heads, D] by their rows' positions."""
        half = self._weights.head_dim // 2
        swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
        return (heads * cos).addcmul_(swapped, sin)

    # ----------------------------------------------------------------- rows and prompts
    def _arrange(self) -> None:
        """Find the place of every row in the grid of U prompts by M rows; None when the rows fill it exactly."""
        num_prompts = self._prompts[0][0].shape[0]
        counts = self._owner.bincount(minlength=num_prompts)
        self._width = int(counts.max())
        starts = counts.cumsum(0) - counts
        rank = torch.arange(self._owner.numel(), device=self._owner.device) - starts[self._owner]
        self._place: torch.Tensor | None = self._owner * self._width + rank
        self._source: torch.Tensor | None = self._owner.new_zeros(num_prompts * self._width)
        self._source[self._place] = torch.arange(self._owner.numel(), device=self._owner.device)
        if self._place.numel() == num_prompts * self._width:
            self._place = self._source = None

    def _to_grid(self, rows: torch.Tensor) -> torch.Tensor:
        """Arrange [A, G, R, X] as [U, G, M * R, X], so that a prompt meets all its rows in one product."""
        if self._source is not None:
            rows = rows[self._source]
        _, heads, groups, last = rows.shape
        return (
            rows.view(-1, self._width, heads, groups, last)
            .transpose(1, 2)
            .reshape(-1, heads, self._width * groups, last)
        )

    def _from_grid(self, grid: torch.Tensor) -> torch.Tensor:
        """Undo :meth:`_to_grid`."""
        _, heads, merged, last = grid.shape
        groups = merged // self._width
        rows = grid.view(-1, heads, self._width, groups, last).transpose(1, 2).reshape(-1, heads, groups, last)
        return rows if self._place is None else rows[self._place]

    def _grow(self, room: int) -> None:
        """Make room for that many generated columns per row."""
        weights = self._weights
        shape = (self._owner.numel(), weights.num_kv_heads, room, weights.head_dim)
        fresh = [tuple(weights.embedding.new_empty(shape) for _ in range(2)) for _ in weights.layers]
        for (keys, values), (old_keys, old_values) in zip(fresh, self._own, strict=False):
            keys[:, :, : self._length] = old_keys[:, :, : self._length]
            values[:, :, : self._length] = old_values[:, :, : self._length]
        self._own = [(keys, values) for keys, values in fresh]
        self._room = room
