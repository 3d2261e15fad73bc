"""A run goes on exactly under another engine and another layout: from files, and from one process to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import megatron_ranks
import pytest
import torch
from safetensors.torch import load_file
from test_parity import EXPERT, PIPELINE, TENSOR, assert_same, assert_same_weights, slow

from plugrl.testing.ranks import RankPool

WAYS = [
    pytest.param("qwen3", ("fsdp2", {}, 2), ("megatron", TENSOR, 2), id="fsdp to tensor"),
    pytest.param("qwen3", ("megatron", TENSOR, 2), ("fsdp2", {}, 2), id="tensor to fsdp", marks=slow),
    pytest.param("qwen2", ("fsdp2", {}, 4), ("megatron", {**TENSOR, **PIPELINE}, 4), id="fsdp to tensor x pipeline",
                 marks=slow),
    pytest.param("qwen2", ("megatron", {**TENSOR, **PIPELINE}, 4), ("ddp", {}, 1), id="tensor x pipeline to one",
                 marks=slow),
    pytest.param("qwen3", ("megatron", PIPELINE, 4), ("megatron", {**TENSOR, "use_distributed_optimizer": False}, 2),
                 id="pipeline x data to tensor", marks=slow),
    pytest.param("qwen3_moe", ("fsdp2", {}, 2), ("megatron", EXPERT, 2), id="fsdp to expert", marks=slow),
    pytest.param("qwen3_moe", ("megatron", {**EXPERT, **PIPELINE}, 4), ("fsdp2", {}, 2), id="expert to fsdp",
                 marks=slow),
]  # fmt: skip


@pytest.mark.parametrize(("family", "one", "other"), WAYS)
def test_a_checkpoint_goes_on_under_another_layout(
    ranks: RankPool, tmp_path: Path, family: str, one: Any, other: Any
) -> None:
    section = megatron_ranks.model(family)
    folder = str(tmp_path / "checkpoint")
    backend, config, world = one
    expected = ranks.run(megatron_ranks.train_and_save, backend, section, config, folder, world=world, timeout_s=120)
    backend, config, world = other
    again = tmp_path / "again"
    runs = ranks.run(megatron_ranks.load_and_train, backend, section, config, folder, str(again), world=world,
                     timeout_s=120)  # fmt: skip
    assert runs[0]["updates"] == 4
    for key in ("losses", "norms"):
        assert_same(runs, expected, key)
    assert_same_weights(runs, expected[0]["weights"])
    stored, back = (load_file(path / "pretrained_model" / "model.safetensors") for path in (Path(folder), again))
    assert stored.keys() == back.keys()
    for name, tensor in stored.items():
        assert torch.equal(tensor, back[name]), f"{name} came back with other bits"


@pytest.mark.parametrize(("family", "one", "other"), WAYS)
def test_a_state_is_handed_over_bit_by_bit(ranks: RankPool, family: str, one: Any, other: Any) -> None:
    section = megatron_ranks.model(family)
    backend, config, world = one
    expected = ranks.run(megatron_ranks.give_state, backend, section, config, world=world, timeout_s=120)
    pieces = [piece for run in expected for piece in run["pieces"] if not piece[0].key.startswith("random/")]
    backend, config, world = other
    runs = ranks.run(
        megatron_ranks.take_state, backend, section, config, pieces, expected[0]["values"], world=world, timeout_s=120
    )
    assert megatron_ranks.whole_sums(runs) == megatron_ranks.whole_sums(expected)
    for key in ("losses", "norms"):
        assert_same(runs, expected, key)
    assert_same_weights(runs, expected[0]["weights"])


def test_a_checkpoint_of_another_model_is_refused_by_name(ranks: RankPool, tmp_path: Path) -> None:
    section, other = megatron_ranks.model("qwen3"), megatron_ranks.model("qwen3", hidden_size=16)
    ranks.run(megatron_ranks.train_and_save, "ddp", section, {}, str(tmp_path / "one"), world=1)
    with pytest.raises(AssertionError, match=r"embed_tokens.weight has shape \[\d+, 32\], expected \[\d+, 16\]"):
        ranks.run(megatron_ranks.load_and_train, "megatron", other, {}, str(tmp_path / "one"), world=1)
