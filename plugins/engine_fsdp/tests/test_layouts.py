"""One rank, two ranks of fsdp2 and two ranks of ddp must give the same numbers, however a batch is split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import block_policy
import layout_worker
import pytest
import torch
from safetensors.torch import load_file

from plugrl.models import MODELS, register_model
from plugrl.platforms import use_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.testing.ranks import RankPool

DEADLINE_S = 200
SPLITS = ("whole", "two", "one", "tokens")
LAYOUTS = ("fsdp2-1", "fsdp2-2", "ddp-1", "ddp-2")


@dataclass
class Run:
    """What the ranks of one layout left behind."""

    ranks: list[dict[str, Any]]
    tensors: dict[str, torch.Tensor]
    folder: Path

    def group(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors below a prefix, without it."""
        return {k.removeprefix(prefix + "/"): v for k, v in self.tensors.items() if k.startswith(prefix + "/")}


def read_run(folder: Path, name: str) -> Run:
    """Results of one layout."""
    files = sorted((folder / name).glob("rank*.json"))
    return Run([json.loads(file.read_text()) for file in files], load_file(folder / name / "tensors.safetensors"),
               folder / name)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, ranks: RankPool) -> Iterator[dict[str, Run]]:
    """Every layout, run once: one rank in this process, two ranks in two others."""
    folder = tmp_path_factory.mktemp("layouts")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with MODELS.temporary(), use_platform(CpuPlatform()):
        register_model("engine_test_blocks", block_policy.build)
        for backend in ("fsdp2", "ddp"):
            layout_worker.run_checks(backend, 0, 1, folder)
        ranks.run(layout_worker.run_two_ranks, str(folder), world=2, timeout_s=DEADLINE_S)
    torch.set_num_threads(threads)
    yield {name: read_run(folder, name) for name in LAYOUTS}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], **tolerance: float) -> None:
    """Same names and, within the tolerance, the same values."""
    assert one and one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", SPLITS)
def test_loss_gradient_and_parameters_depend_on_no_layout_and_no_split(
    runs: dict[str, Run], layout: str, split: str
) -> None:
    base, run = runs["ddp-1"], runs[layout]
    for key in ("loss", "norm", "losses", "lr"):
        expected = base.ranks[0][f"split/whole/{key}"]
        for rank in run.ranks:
            assert rank[f"split/{split}/{key}"] == pytest.approx(expected, rel=2e-5), key
    for group in ("grad", "clipped", "param"):
        assert_equal(base.group(f"split/whole/{group}"), run.group(f"split/{split}/{group}"), rtol=1e-4, atol=2e-6)


def test_clipping_scales_the_whole_gradient_to_the_norm(runs: dict[str, Run]) -> None:
    for run in runs.values():
        before, after = run.group("split/whole/grad"), run.group("split/whole/clipped")
        norm = torch.stack([grad.norm() for grad in before.values()]).norm()
        assert float(norm) == pytest.approx(run.ranks[0]["split/whole/norm"], rel=1e-5)
        assert float(norm) > 0.5
        assert float(torch.stack([grad.norm() for grad in after.values()]).norm()) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inference_returns_rows_in_their_order(runs: dict[str, Run], layout: str) -> None:
    base, run = runs["ddp-1"].ranks[0], runs[layout]
    for forward_only in ("False", "True"):
        for key in ("logprobs", "entropy"):
            rows = [row for rank in run.ranks for row in rank[f"infer/{forward_only}/{key}"]]
            torch.testing.assert_close(
                torch.tensor(rows), torch.tensor(base[f"infer/False/{key}"]), rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", ("offload", "keep", "by_size"))
def test_offload_and_resharding_change_nothing(runs: dict[str, Run], layout: str, variant: str) -> None:
    base, run = runs["ddp-1"], runs[layout]
    for key in ("losses", "norms"):
        assert run.ranks[0][f"variant/{variant}/{key}"] == pytest.approx(
            base.ranks[0][f"variant/plain/{key}"], rel=5e-5
        )
    assert_equal(base.group("variant/plain/param"), run.group(f"variant/{variant}/param"), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bf16_computes_low_and_keeps_fp32_weights(runs: dict[str, Run], layout: str) -> None:
    run, base = runs[layout].ranks[0], runs["ddp-1"].ranks[0]
    assert run["variant/bf16/dtypes"] == ["torch.float32"]
    for key in ("losses", "norms"):
        assert run[f"variant/bf16/{key}"] == pytest.approx(base[f"variant/plain/{key}"], rel=0.03, abs=0.03)
        assert run[f"variant/bf16/{key}"] != base[f"variant/plain/{key}"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gradient_that_is_not_finite_skips_the_step_on_all_ranks(runs: dict[str, Run], layout: str) -> None:
    run = runs[layout]
    for rank in run.ranks:
        assert rank["fault/norm_finite"] is False
        assert rank["fault/skipped"] == 1
    assert_equal(run.group("fault/before"), run.group("fault/after"), rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exception_in_a_step_leaves_no_gradient_behind(runs: dict[str, Run], layout: str) -> None:
    for rank in runs[layout].ranks:
        assert rank["fault/raised"] is True
        assert rank["fault/norm_after"] == pytest.approx(runs["ddp-1"].ranks[0]["split/whole/norm"], rel=2e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_resume_is_bit_equal(runs: dict[str, Run], layout: str) -> None:
    run = runs[layout]
    for rank in run.ranks:
        assert rank["checkpoint/resumed_losses"] == rank["checkpoint/losses"]
    assert_equal(run.group("checkpoint/end"), run.group("checkpoint/resumed_end"), rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_files_hold_what_the_stream_gives(runs: dict[str, Run], layout: str) -> None:
    stored = load_file(runs[layout].folder / "checkpoint/pretrained_model/model.safetensors")
    assert_equal(runs[layout].group("checkpoint/saved"), stored, rtol=0, atol=0)
    assert "model.embed.weight" in stored and "model.scale" in stored
    assert not any("head" in name for name in stored)


def test_export_under_sharding_equals_the_single_process(runs: dict[str, Run]) -> None:
    fresh = {layout: runs[layout].group("fault/before") for layout in LAYOUTS}
    for layout in LAYOUTS[1:]:
        assert_equal(fresh["fsdp2-1"], fresh[layout], rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_hugging_face_model_trains_alike_and_is_saved_as_its_family_does(runs: dict[str, Run], layout: str) -> None:
    if "causal_lm" not in MODELS:
        pytest.skip("models_hf is not installed")
    from transformers import AutoModelForCausalLM

    base, run = runs["ddp-1"], runs[layout]
    assert run.ranks[0]["hf/norms"] == pytest.approx(base.ranks[0]["hf/norms"], rel=1e-4)
    assert_equal(base.group("hf/param"), run.group("hf/param"), rtol=1e-3, atol=1e-5)
    model = AutoModelForCausalLM.from_pretrained(run.folder / "hf/pretrained_model")
    loaded = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert_equal(run.group("hf/param"), loaded, rtol=0, atol=0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
