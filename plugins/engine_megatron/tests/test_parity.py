"""However a model is spread over ranks, the same data give the same losses, gradients and weights as with FSDP."""

from __future__ import annotations

from typing import Any

import megatron_ranks
import pytest
import torch

from plugrl.testing.ranks import RankPool

Runs = list[dict[str, Any]]
TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
EXPERT, CONTEXT = {"expert_model_parallel_size": 2}, {"context_parallel_size": 2}
slow = pytest.mark.slow

LAYOUTS = [
    pytest.param("qwen3", 2, TENSOR, {}, id="tensor"),
    pytest.param("qwen2", 2, PIPELINE, {}, id="pipeline"),
    pytest.param("qwen3", 2, {}, {}, id="data", marks=slow),
    pytest.param("qwen3", 2, {"use_distributed_optimizer": False}, {}, id="data, plain optimizer", marks=slow),
    pytest.param("qwen3", 2, {**TENSOR, "sequence_parallel": False}, {}, id="tensor, whole sequences", marks=slow),
    pytest.param("qwen3", 2, CONTEXT, {}, id="context", marks=slow),
    pytest.param("llama", 4, {**TENSOR, **PIPELINE}, {}, id="tensor and pipeline", marks=slow),
    pytest.param("qwen2", 4, {**TENSOR, **CONTEXT}, {}, id="tensor and context", marks=slow),
    pytest.param("qwen3", 4, PIPELINE, {"tie_word_embeddings": True}, id="pipeline, tied, data", marks=slow),
    pytest.param("qwen3_moe", 1, {}, {}, id="experts on one rank"),
    pytest.param("qwen3_moe", 2, EXPERT, {}, id="expert", marks=slow),
    pytest.param("qwen3_moe", 4, {**EXPERT, **PIPELINE}, {"norm_topk_prob": False}, id="expert, pipeline", marks=slow),
    pytest.param("qwen3_moe", 4, {**EXPERT, **TENSOR, "expert_tensor_parallel_size": 1}, {}, id="whole experts, tensor",
                 marks=slow),
    pytest.param("llama", 2, {**PIPELINE, "virtual_pipeline_model_parallel_size": 2}, {"num_hidden_layers": 4},
                 id="virtual stages", marks=slow),
    pytest.param("qwen3", 2, {**TENSOR, "recompute_granularity": "full"}, {}, id="tensor, recompute", marks=slow),
]  # fmt: skip


def assert_same(runs: Runs, expected: Runs, key: str) -> None:
    """The mean over the ranks that answer, to a relative error."""
    means = [[sum(values) / len(values) for values in zip(*(run[key] for run in some if run["answers"]), strict=True)]
             for some in (runs, expected)]  # fmt: skip
    assert means[0] == pytest.approx(means[1], rel=1e-5), key


def assert_same_weights(runs: Runs, expected: dict[str, torch.Tensor]) -> None:
    """Every rank's view of the weights, relative to the size of each tensor."""
    for run in runs:
        assert list(run["weights"]) == list(expected), "names, in the model's order"
        for name, tensor in expected.items():
            difference = (run["weights"][name] - tensor).abs().max()
            assert difference <= 1e-5 * tensor.abs().max(), f"{name} differs by {difference}"


@pytest.mark.parametrize(("family", "world", "config", "changes"), LAYOUTS)
def test_three_steps_agree_with_fsdp(
    ranks: RankPool, family: str, world: int, config: dict[str, Any], changes: dict[str, Any]
) -> None:
    section = megatron_ranks.model(family, **changes)
    expected = ranks.run(megatron_ranks.train, "fsdp2", section, {}, world=2)
    runs = ranks.run(megatron_ranks.train, "megatron", section, config, micro=2, world=world, timeout_s=120.0)
    for run in runs:
        for name, tensor in expected[0]["first"].items():
            assert torch.equal(run["first"][name], tensor), f"{name} was not read bit by bit"
    assert_outputs(runs, expected)
    for key in ("losses", "norms"):
        assert_same(runs, expected, key)
    assert_same_weights(runs, expected[0]["weights"])
    assert max(expected[0]["norms"]) > megatron_ranks.OPTIM["clip_grad"], "nothing was clipped"


def assert_outputs(runs: Runs, expected: Runs) -> None:
    """Log-probabilities and entropies of all rows, from the ranks that answer for them."""
    whole = [sorted((run for run in some if run["answers"]), key=lambda run: run["part"]) for some in (runs, expected)]
    for name in expected[0]["outputs"]:
        found, wanted = (torch.cat([run["outputs"][name] for run in some]) for some in whole)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@slow
@pytest.mark.parametrize("config", [TENSOR, PIPELINE, CONTEXT], ids=["tensor", "pipeline", "context"])
def test_values_agree_with_fsdp(ranks: RankPool, config: dict[str, Any]) -> None:
    section = megatron_ranks.model("qwen2", values=True)
    expected = ranks.run(megatron_ranks.train, "fsdp2", section, {}, world=2)
    runs = ranks.run(megatron_ranks.train, "megatron", section, config, micro=2, world=2)
    assert_outputs(runs, expected)
    for key in ("losses", "norms"):
        assert_same(runs, expected, key)
    assert_same_weights(runs, expected[0]["weights"])
