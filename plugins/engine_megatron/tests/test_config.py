"""What does not go together is said in one line that names its key, before anything is built."""

from __future__ import annotations

import re
from typing import Any

import megatron_ranks
import pytest
from transformers import AutoConfig

from plugrl.errors import ConfigError
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl_engine_megatron.architecture import Architecture, read_architecture
from plugrl_engine_megatron.backends import MegatronEngine
from plugrl_engine_megatron.config import MegatronConfig


@pytest.mark.parametrize(
    ("config", "world", "parts"),
    [
        ({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}, 6, ["= 4 ranks", "divide 6 ranks"]),
        ({"expert_model_parallel_size": 4}, 6, ["megatron.expert_model_parallel_size: 4", "does not divide 6"]),
        ({"virtual_pipeline_model_parallel_size": 2}, 2, ["virtual_pipeline_model_parallel_size", "at least 2"]),
        ({"recompute_method": "uniform"}, 1, ["recompute_method", "recompute_granularity=full"]),
        (
            {"expert_model_parallel_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": False},
            4,
            ["megatron.sequence_parallel: true is needed"],
        ),
    ],
)
def test_degrees_that_do_not_fit_are_named(config: dict[str, Any], world: int, parts: list[str]) -> None:
    (problem,) = MegatronEngine.problems(config, None, None, world)
    for part in parts:
        assert part in problem


def test_sound_degrees_have_no_problems() -> None:
    config = MegatronConfig(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    assert not list(config.problems(8)) and config.data_parallel_size(8) == 2


@pytest.mark.parametrize(
    ("tensor", "context", "multiple"), [(1, 1, 1), (2, 1, 2), (1, 2, 4), (2, 2, 4), (4, 2, 8), (3, 2, 12)]
)
def test_sequences_can_be_shared(tensor: int, context: int, multiple: int) -> None:
    """Each of 2C chunks over the ranks of a matrix together, as far as a rank of a context shares them."""
    config = MegatronConfig(tensor_model_parallel_size=tensor, context_parallel_size=context)
    assert config.sequence_multiple() == multiple
    assert multiple % (2 * context if context > 1 else 1) == 0 and multiple // context % tensor == 0


SHAPE = {"hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 3, "head_dim": 8, "vocab_size": 15}  # fmt: skip


def architecture(family: str = "qwen3", **changes: Any) -> Architecture:
    """A small architecture, from the configuration that transformers has of it."""
    return read_architecture(AutoConfig.for_model(family, **{**SHAPE, **changes}), has_values=False)


def test_what_a_model_cannot_be_divided_by_is_named() -> None:
    config = MegatronConfig(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, expert_model_parallel_size=2)
    problems = list(architecture().problems(config))
    assert problems == [
        "megatron.tensor_model_parallel_size: 2 does not divide 3 key-value heads of the model",
        "megatron.pipeline_model_parallel_size: 2 stages (with virtual ones) do not divide 3 layers",
        "megatron.expert_model_parallel_size: the model has no experts; leave it at 1",
    ]
    assert architecture().padded_vocab_size(4) == 16 and architecture().padded_vocab_size(3) == 15


@pytest.mark.parametrize(
    ("family", "changes", "part"),
    [
        ("gpt2", {}, "builds llama, qwen2, qwen3, qwen3_moe, and this model is 'gpt2'; fsdp2 trains every family"),
        ("llama", {"mlp_bias": True}, "biases of queries, keys and values in qwen2 alone"),
        ("llama", {"hidden_act": "gelu"}, "knows the activation silu, not 'gelu'"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, "no sliding windows"),
        (
            "qwen3",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                 "original_max_position_embeddings": 64}},
            "default, linear, llama3, not yarn",
        ),
    ],
)  # fmt: skip
def test_what_is_not_computed_here_is_refused_by_name(family: str, changes: dict[str, Any], part: str) -> None:
    changes = {} if family == "gpt2" else {**SHAPE, **changes}
    with pytest.raises(ConfigError, match=re.escape(part)):
        read_architecture(AutoConfig.for_model(family, **changes), has_values=False)


@pytest.mark.parametrize(
    ("section", "config", "optim", "part"),
    [
        ({"lora": {"rank": 2}}, {}, None, "model.lora: the megatron engine trains whole models"),
        ({"precision": "fp16"}, {}, None, "model.precision: the megatron engine computes in fp32 or bf16, not in"),
        ({}, {"tensor_model_parallel_size": 2}, None, "does not divide 1 ranks"),
        ({}, {}, {"lr_multipliers": {"norm": 2.0}}, "optim.lr_multipliers: the megatron engine does not have it"),
    ],
)
def test_what_an_engine_does_not_have_is_refused(
    section: dict[str, Any], config: dict[str, Any], optim: Any, part: str
) -> None:
    with use_platform(CpuPlatform()):
        text = megatron_ranks.refused(0, 1, {**megatron_ranks.model("qwen3"), **section}, config, optim)
    assert part in text
