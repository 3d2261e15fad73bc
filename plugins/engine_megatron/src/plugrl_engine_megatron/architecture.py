"""What is built of a Hugging Face configuration: the families there are, and what of each this engine can compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from plugrl.errors import ConfigError, one_of
from plugrl_engine_megatron.config import MegatronConfig

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The mixture of experts of a model. is_sparse: of each layer, whether it has one. normalised: whether the weights
    of the chosen experts add up to one."""

    count: int
    chosen: int
    ffn_hidden_size: int
    normalised: bool
    is_sparse: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder. vocab_size without padding. has_values: one output per token in place of logits."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_groups: int
    head_size: int
    ffn_hidden_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    tied: bool
    has_values: bool
    experts: Experts | None
    inverse_frequencies: tuple[float, ...]

    def padded_vocab_size(self, tensor: int) -> int:
        """The vocabulary's size filled up so that ``tensor`` ranks can share it."""
        return math.ceil(self.vocab_size / tensor) * tensor

    def problems(self, config: MegatronConfig) -> Iterator[str]:
        """Yield what does not divide, each as a line that begins with its key."""
        tensor, stages = config.tensor_model_parallel_size, config.stages
        for what, size in (("attention heads", self.num_heads), ("key-value heads", self.num_groups),
                           ("MLP columns", self.ffn_hidden_size)):  # fmt: skip
            if size % tensor:
                yield f"megatron.tensor_model_parallel_size: {tensor} does not divide {size} {what} of the model"
        if self.num_layers % stages:
            yield (
                f"megatron.pipeline_model_parallel_size: {stages} stages (with virtual ones) do not divide "
                f"{self.num_layers} layers"
            )
        if self.experts is None:
            if config.expert_model_parallel_size > 1:
                yield "megatron.expert_model_parallel_size: the model has no experts; leave it at 1"
        elif self.experts.count % config.expert_model_parallel_size:
            yield (
                f"megatron.expert_model_parallel_size: {config.expert_model_parallel_size} does not divide "
                f"{self.experts.count} experts"
            )


def read_architecture(config: Any, *, has_values: bool) -> Architecture:
    """Read a Hugging Face configuration. Raises ConfigError for what this engine does not compute."""
    family = config.model_type
    if family not in FAMILIES:
        raise ConfigError(
            f"actor.strategy: the megatron engine builds {one_of(FAMILIES)}, and this model is {family!r}; "
            "fsdp2 trains every family"
        )
    if config.hidden_act != "silu":
        raise ConfigError(f"model: the megatron engine knows the activation silu, not {config.hidden_act!r}")
    if getattr(config, "mlp_bias", False) or (family != "qwen2" and getattr(config, "attention_bias", False)):
        raise ConfigError("model: the megatron engine knows biases of queries, keys and values in qwen2 alone")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "use_sliding_window", False):
        raise ConfigError("model: the megatron engine has no sliding windows; fsdp2 has")
    heads = config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Architecture(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=heads,
        num_groups=config.num_key_value_heads or heads,
        head_size=head_size,
        ffn_hidden_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3_moe"),
        tied=bool(config.tie_word_embeddings) and not has_values,
        has_values=has_values,
        experts=_experts(config) if family == "qwen3_moe" else None,
        inverse_frequencies=tuple(_inverse_frequencies(config, head_size).tolist()),
    )


def _experts(config: Any) -> Experts:
    if config.output_router_logits:
        raise ConfigError("model: output_router_logits adds a loss of the router, which the megatron engine does not")
    dense = set(config.mlp_only_layers or ())
    sparse = tuple(
        layer not in dense and config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0
        for layer in range(config.num_hidden_layers)
    )
    return Experts(
        count=config.num_experts,
        chosen=config.num_experts_per_tok,
        ffn_hidden_size=config.moe_intermediate_size,
        normalised=bool(config.norm_topk_prob),
        is_sparse=sparse,
    )


def _inverse_frequencies(config: Any, head_size: int) -> torch.Tensor:
    """Return the inverse frequencies [head_size / 2] of the rotary embedding, as transformers computes them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters
    kind, share = parameters["rope_type"], parameters.get("partial_rotary_factor", 1.0)
    if share != 1.0:
        raise ConfigError("model: the megatron engine rotates whole heads, and this model parts of them")
    if kind == "default":
        steps = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        return 1.0 / (parameters["rope_theta"] ** steps)
    if kind not in ("linear", "llama3"):
        raise ConfigError(f"model: the megatron engine knows the rotary embeddings default, linear, llama3, not {kind}")
    found, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    if factor != 1.0:
        raise ConfigError(f"model: the rotary embedding {kind} scales attention by {factor}, which megatron does not")
    return found.float()
