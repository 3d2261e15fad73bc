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
    """The weights of one decoder layer.

    Norm weights are None where they are folded into the matrix that follows. ``head_norm`` [G * R + G, D] holds those
    of queries and keys, side by side, in the families that have them.
    """

    input_norm: torch.Tensor | None
    qkv: Linear
    head_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor | None
    gate_up: Linear
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: Linear


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All weights of a model, laid out for decoding; built anew whenever the model's weights change."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor | None
    eps: float
    head: Linear
    rotary: torch.nn.Module
    num_kv_heads: int
    num_groups: int
    head_dim: int


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
    """Copy the weights of a supported model into the layout for decoding.

    In fp32 the weights of norms and the scale of attention go into the matrices, which saves operations; in shorter
    types that would round differently from the model's own forward, so they stay apart.
    """
    backbone = model.base_model
    attention = backbone.layers[0].self_attn
    norm = backbone.norm.weight.detach()
    fold = norm.dtype == torch.float32
    return Weights(
        embedding=backbone.embed_tokens.weight.detach(),
        layers=tuple(_layer(block, fold, pack) for block in backbone.layers),
        norm=None if fold else norm,
        eps=backbone.norm.variance_epsilon,
        head=Linear.of([model.get_output_embeddings()], in_scale=norm if fold else None, pack=pack),
        rotary=backbone.rotary_emb,
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        num_groups=attention.num_key_value_groups,
        head_dim=attention.head_dim,
    )


def _layer(block: torch.nn.Module, fold: bool, pack: bool) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    input_norm, mlp_norm = block.input_layernorm.weight.detach(), block.post_attention_layernorm.weight.detach()
    head_norm = _head_norm(attention)
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    return Layer(
        input_norm=None if fold else input_norm,
        qkv=Linear.of(
            projections,
            in_scale=input_norm if fold else None,
            # Norms of queries would undo a scale, so it sits in their weights then.
            out_scales=(attention.scaling, 1.0, 1.0) if head_norm is None else None,
            pack=pack,
        ),
        head_norm=head_norm,
        out=Linear.of([attention.o_proj], pack=pack),
        mlp_norm=None if fold else mlp_norm,
        gate_up=Linear.of([mlp.gate_proj, mlp.up_proj], in_scale=mlp_norm if fold else None, pack=pack),
        activation=mlp.act_fn,
        down=Linear.of([mlp.down_proj], pack=pack),
    )


def _head_norm(attention: torch.nn.Module) -> torch.Tensor | None:
    """Return the norm weights of queries, times the scale of attention, and keys: [G * R + G, D], or None."""
    if not hasattr(attention, "q_norm"):
        return None
    query = attention.q_norm.weight.detach() * attention.scaling
    num_keys = attention.k_proj.out_features // attention.head_dim
    key = attention.k_norm.weight.detach()
    return torch.cat((query.expand(num_keys * attention.num_key_value_groups, -1), key.expand(num_keys, -1)))


class FusedDecoder:
    """Prefills through the model's own forward, then steps with :class:`Weights`. See ``decoder.Decoder``."""

    def __init__(self, model: PreTrainedModel, weights: Weights) -> None:
        self._model = model
        self._weights = weights
        self._root_eps = torch.tensor(weights.eps**0.5, device=weights.embedding.device)
        self._ones = torch.ones_like(weights.embedding[0, : weights.head_dim])

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
        weights = self._weights
        self._owner = owner
        last = int(self._positions.max()) + max_new_tokens + 1
        columns = torch.arange(last, device=owner.device).unsqueeze(0)
        cos, sin = weights.rotary(weights.embedding[:1, None], columns)
        half = weights.head_dim // 2
        # rotate_half(x) * sin, with the minus sign moved into the table.
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        self._positions = self._positions[owner]
        self._length = self._room = 0
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
        for index, layer in enumerate(weights.layers):
            projections = layer.qkv(self._norm(states, layer.input_norm))
            states = layer.out(self._attend(index, layer, projections, cos, sin), residual=states)
            gate, up = layer.gate_up(self._norm(states, layer.mlp_norm)).chunk(2, dim=-1)
            states = layer.down(layer.activation(gate).mul_(up), residual=states)
        self._length += 1
        return weights.head(self._norm(states, weights.norm))

    def _norm(self, states: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Divide by the root mean square of the last axis; without a weight in as few operations as can be."""
        if weight is not None:
            return F.rms_norm(states, states.shape[-1:], weight, self._weights.eps)
        length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        # sqrt(mean(x^2) + eps) as the hypotenuse of |x| / sqrt(H) and sqrt(eps).
        return states / length.mul_(states.shape[-1] ** -0.5).hypot_(self._root_eps)

    def _attend(
        self, index: int, layer: Layer, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Return the attention output [A, G * R * D] of one layer, from its projections [A, (G * R + 2 * G) * D].

        Scores against the prompt's keys are computed prompt by prompt for all its rows, those against generated keys
        row by row; one softmax runs over both.
        """
        weights, end = self._weights, self._length + 1
        heads, groups, dim = weights.num_kv_heads, weights.num_groups, weights.head_dim
        num_rows, num_queries = qkv.shape[0], heads * groups
        split = qkv.view(num_rows, -1, dim)
        turned = self._turn(split[:, : num_queries + heads], layer.head_norm, cos, sin)
        own_keys, own_values = self._own[index]
        own_keys[:, :, self._length] = turned[:, num_queries:]
        own_values[:, :, self._length] = split[:, num_queries + heads :]
        own_keys, own_values = own_keys.flatten(0, 1)[:, :end], own_values.flatten(0, 1)[:, :end]
        query = turned[:, :num_queries].contiguous().view(num_rows, heads, groups, dim)

        prompt_keys, prompt_values = self._prompts[index]
        scores = self._to_grid(query) @ prompt_keys
        if self._bias is not None:
            scores += self._bias
        prompt_scores = self._from_grid(scores).reshape(num_rows * heads, groups, -1)
        own_scores = torch.bmm(query.view(num_rows * heads, groups, dim), own_keys.transpose(1, 2))
        shares = torch.softmax(torch.cat((prompt_scores, own_scores), dim=-1), dim=-1, dtype=torch.float32)
        shares = shares.to(query.dtype)
        num_prompt = prompt_keys.shape[-1]
        prompt_shares = shares[..., :num_prompt].reshape(num_rows, heads, groups, num_prompt)
        mixed = self._from_grid(self._to_grid(prompt_shares) @ prompt_values).reshape(num_rows * heads, groups, dim)
        return torch.baddbmm(mixed, shares[..., num_prompt:], own_values).view(num_rows, -1)

    def _turn(
        self, heads: torch.Tensor, weight: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Normalise queries and keys [A, G * R + G, D] in the families that do, and turn them by their positions."""
        if weight is not None:
            unit = self._norm(heads, None) if heads.dtype == torch.float32 else self._norm(heads, self._ones)
            heads = unit.mul_(weight)
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
