"""The weights of the plain decoder families, laid out for decoding.

One step of a small batch is bound by reading weights and by the overhead of operations. So the three projections of
attention and the two of the MLP are one matrix each, norms and scales go into matrices, and large matrices are packed.

G key-value heads, R query heads per key-value head, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from plugrl_rollout_hf.linear import Linear

FAMILIES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})


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
    """Whether the model's family and configuration are those the fused decoder computes."""
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
    # A folded norm divides by the length of a vector instead of its root mean square.
    root = norm.numel() ** 0.5
    return Weights(
        embedding=backbone.embed_tokens.weight.detach(),
        layers=tuple(_layer(block, fold, pack) for block in backbone.layers),
        norm=None if fold else norm,
        eps=backbone.norm.variance_epsilon,
        head=Linear.of([model.get_output_embeddings()], in_scale=norm * root if fold else None, pack=pack),
        rotary=backbone.rotary_emb,
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        num_groups=attention.num_key_value_groups,
        head_dim=attention.head_dim,
    )


def _layer(block: torch.nn.Module, fold: bool, pack: bool) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    input_norm, mlp_norm = block.input_layernorm.weight.detach(), block.post_attention_layernorm.weight.detach()
    head_norm = _head_norm(attention, fold)
    root = input_norm.numel() ** 0.5
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    return Layer(
        input_norm=None if fold else input_norm,
        qkv=Linear.of(
            projections,
            in_scale=input_norm * root if fold else None,
            # Norms of queries would undo a scale, so it sits in their weights then.
            out_scales=(attention.scaling, 1.0, 1.0) if head_norm is None else None,
            pack=pack,
        ),
        head_norm=head_norm,
        out=Linear.of([attention.o_proj], pack=pack),
        mlp_norm=None if fold else mlp_norm,
        gate_up=Linear.of([mlp.gate_proj, mlp.up_proj], in_scale=mlp_norm * root if fold else None, pack=pack),
        activation=mlp.act_fn,
        down=Linear.of([mlp.down_proj], pack=pack),
    )


def _head_norm(attention: torch.nn.Module, fold: bool) -> torch.Tensor | None:
    """Return the norm weights of queries, times the scale of attention, and keys: [G * R + G, D], or None."""
    if not hasattr(attention, "q_norm"):
        return None
    root = attention.head_dim**0.5 if fold else 1.0
    query = attention.q_norm.weight.detach() * (attention.scaling * root)
    num_keys = attention.k_proj.out_features // attention.head_dim
    key = attention.k_norm.weight.detach() * root
    return torch.cat((query.expand(num_keys * attention.num_key_value_groups, -1), key.expand(num_keys, -1)))
