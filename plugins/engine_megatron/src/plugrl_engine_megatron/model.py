"""One stage of a decoder: megatron-core's GPTModel, which gives numbers per response token instead of logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from plugrl_engine_megatron.architecture import Architecture
from plugrl_engine_megatron.attention import CausalAttention, Norm
from plugrl_engine_megatron.config import MegatronConfig
from plugrl_engine_megatron.library import (
    ColumnParallelLinear,
    GPTModel,
    IdentityOp,
    RowParallelLinear,
    TransformerConfig,
    VocabParallelEmbedding,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_gpt_decoder_block_spec,
    parallel_state,
    reduce_from_tensor_model_parallel_region,
    set_tensor_model_parallel_attributes,
)
from plugrl_engine_megatron.parallel import Place, current_device
from plugrl_engine_megatron.rows import Rows
from plugrl_engine_megatron.statistics import token_statistics


class Stage(GPTModel):
    """A part of a decoder. ``forward`` takes the rows and gives hidden states, or outputs [B, T] on the last stage."""

    def __init__(self, architecture: Architecture, config: Any, **kwargs: Any) -> None:
        tensor = config.tensor_model_parallel_size
        super().__init__(
            config=config,
            vocab_size=architecture.padded_vocab_size(tensor),
            max_sequence_length=architecture.max_positions,
            share_embeddings_and_output_weights=architecture.tied,
            position_embedding_type="rope",
            parallel_output=True,
            **kwargs,
        )
        self.architecture = architecture
        device = current_device()
        self.rotary_pos_emb.inv_freq = torch.tensor(architecture.inverse_frequencies, device=device)
        if architecture.has_values and self.post_process:
            del self.output_layer
            self.score = torch.nn.Linear(architecture.hidden_size, 1, device=device, dtype=config.params_dtype)

    def setup_embeddings_and_output_layer(self) -> None:
        """Note which weights are one: the library also adds them up over its own device, before they are read."""
        if not self.share_embeddings_and_output_weights or self.pre_process == self.post_process:
            return  # each is there once: gradients and norms need no note
        weight = self.shared_embedding_or_output_weight()
        weight.shared_embedding = True
        weight.shared = self.post_process

    def forward(self, rows: Rows, **options: Any) -> Any:
        """Compute this part. ``options`` are those of the policy's forward: temperature, compute_entropy, ...."""
        states = self.embedding(input_ids=rows.tokens, position_ids=None) if self.pre_process else None
        angles = self.rotary_pos_emb.get_emb(rows.length)
        if rows.columns is not None:
            angles = angles.index_select(0, rows.columns)
        states = self.decoder(hidden_states=states, attention_mask=None, rotary_pos_emb=angles)
        return self._outputs(states, rows, **options) if self.post_process else states

    def _outputs(self, states: torch.Tensor, rows: Rows, **options: Any) -> dict[str, torch.Tensor]:
        """Return the outputs [B, T] of states [S', B, H]."""
        if self.config.sequence_parallel:
            # What follows is the same on all ranks or sums its gradients itself, so each takes its part of them.
            states = gather_from_sequence_parallel_region(states, tensor_parallel_output_grad=False)
        picked = states.flatten(0, 1).index_select(0, rows.place)
        if self.architecture.has_values:
            return {"values": self._spread(self.score(picked).squeeze(-1).float(), rows)}
        head = self.shared_embedding_or_output_weight() if self.architecture.tied else self.output_layer.weight
        found = token_statistics(
            lambda part: F.linear(copy_to_tensor_model_parallel_region(part), head),
            picked,
            rows.targets.index_select(0, rows.held),
            num_local=head.shape[0],
            first=head.shape[0] * parallel_state.get_tensor_model_parallel_rank(),
            vocab_size=self.architecture.vocab_size,
            **options,
        )
        named = {"logprobs": found.log_probs, "entropy": found.entropy, "sum_pi_squared": found.sum_pi_squared}
        return {name: self._spread(values, rows) for name, values in named.items() if values is not None}

    def _spread(self, values: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Put values [M] of the targets that this rank holds, and those of the others, at their places in [B, T]."""
        whole = values.new_zeros(rows.targets.shape[0]).index_copy(0, rows.held, values)
        if self.config.context_parallel_size > 1:
            whole = reduce_from_tensor_model_parallel_region(whole, group=parallel_state.get_context_parallel_group())
        return rows.layout.spread(whole)


def build_stages(
    architecture: Architecture, config: MegatronConfig, place: Place, dtype: torch.dtype, *, recompute: bool
) -> list[Stage]:
    """Build what this rank holds of a model, with uninitialised weights: one part, or one per virtual stage."""
    settings = transformer_config(architecture, config, dtype, recompute=recompute)
    virtual = config.virtual_pipeline_model_parallel_size
    return [
        _stage(architecture, settings, place, index if virtual else None, virtual or 1)
        for index in range(virtual or 1)
    ]


def _stage(architecture: Architecture, settings: Any, place: Place, virtual: int | None, count: int) -> Stage:
    spec = get_gpt_decoder_block_spec(
        settings, use_transformer_engine=False, normalization="RMSNorm", vp_stage=virtual, pp_rank=place.stage
    )
    for layer in spec.layer_specs:
        parts = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = Norm
        attention = parts.self_attention.submodules
        attention.core_attention = CausalAttention
        if attention.q_layernorm is not IdentityOp:
            attention.q_layernorm = attention.k_layernorm = Norm
    spec.layer_norm = Norm
    index = virtual or 0
    stage = Stage(
        architecture,
        settings,
        transformer_layer_spec=spec,
        pre_process=place.stage == 0 and index == 0,
        post_process=place.is_last_stage and index == count - 1,
        vp_stage=virtual,
    )
    mark_shared_matrices(stage)
    with torch.no_grad():
        for parameter in stage.parameters():  # rows that only fill up a vocabulary are read from nowhere
            parameter.zero_()
    return stage


def mark_shared_matrices(stage: torch.nn.Module) -> None:
    """Note at the parameters which of them are parts of a matrix; gradient norms count the others on one rank alone.

    The library does so while it initialises them, which is left out here.
    """
    for module in stage.modules():
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
            weight = module.weight
            if weight is not None and not hasattr(weight, "tensor_model_parallel"):
                dim = 1 if isinstance(module, RowParallelLinear) else 0
                set_tensor_model_parallel_attributes(weight, True, dim, 1)


def transformer_config(
    architecture: Architecture, config: MegatronConfig, dtype: torch.dtype, *, recompute: bool
) -> Any:
    """Return megatron-core's own configuration."""
    granularity = config.recompute_granularity or ("full" if recompute else None)
    full = granularity == "full"
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_groups,
        kv_channels=architecture.head_size,
        ffn_hidden_size=architecture.ffn_hidden_size,
        layernorm_epsilon=architecture.norm_eps,
        normalization="RMSNorm",
        activation_func=F.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        qk_layernorm=architecture.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Between two stages there and back at once would be mixed up in one batch of messages.
        overlap_p2p_comm=config.virtual_pipeline_model_parallel_size is not None,
        batch_p2p_comm=config.virtual_pipeline_model_parallel_size is None,
        variable_seq_lengths=config.pipeline_model_parallel_size > 1,
        perform_initialization=False,
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        sequence_parallel=config.sequence_parallel and config.tensor_model_parallel_size > 1,
        recompute_granularity=granularity,
        recompute_method=(config.recompute_method or "uniform") if full else None,
        recompute_num_layers=(config.recompute_num_layers or 1) if full else None,
        transformer_impl="local",
        moe_token_dispatcher_type="alltoall",  # without experts too: the other one objects to rows of any length
        **_expert_settings(architecture),
    )


def _expert_settings(architecture: Architecture) -> Mapping[str, Any]:
    experts = architecture.experts
    if experts is None:
        return {}
    return {
        "num_moe_experts": experts.count,
        "moe_layer_freq": [int(sparse) for sparse in experts.is_sparse],
        "moe_ffn_hidden_size": experts.ffn_hidden_size,
        "moe_router_topk": experts.chosen,
        # A softmax over the chosen ones is one over all, divided by their sum.
        "moe_router_pre_softmax": not experts.normalised,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
    }
