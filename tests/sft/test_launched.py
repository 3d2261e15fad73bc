"""Training in processes that a launcher started: exact resume, other worlds, failures that end all."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import sft_ranks
import torch
import yaml
from safetensors.torch import load_file

from plugrl.checkpoints import verify
from plugrl.processors import POSTPROCESSOR, PREPROCESSOR, Pipeline
from plugrl.testing.lerobot_dataset import action_at, state_at
from plugrl.testing.ranks import RankError, RankPool

from .conftest import free_port

Start = Any


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of this module."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def start(ranks: RankPool, runs: Path, demonstrations: Path) -> Start:
    """Run ``plugrl sft`` on ``world`` ranks; returns what each rank gave."""

    def run(name: str, *overrides: str, world: int = 2, fail: bool = False, source: str = "lerobot") -> list[Any]:
        path = runs / f"{name}.yaml"
        path.write_text(yaml.safe_dump(configuration(demonstrations, runs / name, source)))
        return resume(str(path), *overrides, world=world, fail=fail)

    def resume(*arguments: str, world: int = 2, fail: bool = False) -> list[Any]:
        return ranks.run(
            sft_ranks.train, free_port(), list(arguments), fail=fail, world=world, process_group=False, timeout_s=100
        )

    run.resume = resume  # type: ignore[attr-defined]
    return run


def configuration(demonstrations: Path, folder: Path, source: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if source == "lerobot":
        options = {"root": str(demonstrations), "chunk_size": 4, "val_episodes": [2]}
    return {
        "model": {"model_type": "bc_mlp", "precision": "fp32", "dropout": 0.1},
        "data": {"source": source, "source_options": options},
        "sft": {"batch_size": 3, "total_steps": 8, "optim": {"lr": 3e-3, "clip_grad": 10.0}},
        "accelerator": {"gradient_accumulation": {"steps": 2}},
        "ema": {"enable": True, "decay": 0.5},
        "trainer": {"default_local_dir": str(folder), "logger": ["jsonl"], "save_freq": 4, "seed": 1000},
    }


def rows(folder: Path) -> dict[int, dict[str, float]]:
    return {row["step"]: row for row in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())}


def tensors(step: Path, name: str = "pretrained_model/model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(step / name)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name].nan_to_num(), other[name].nan_to_num()) for name in one
    )


@pytest.fixture(scope="module")
def whole(ranks: RankPool, runs: Path, demonstrations: Path) -> Path:
    """An uninterrupted run of 8 steps on two ranks."""
    path = runs / "whole.yaml"
    path.write_text(yaml.safe_dump(configuration(demonstrations, runs / "whole", "lerobot")))
    first, second = ranks.run(
        sft_ranks.train, free_port(), [str(path)], world=2, process_group=False, timeout_s=100
    )
    assert "effective batch size: 3 per worker x 2 workers x 2 accumulation = 12 (dp_replicate=1, dp_shard=2)" in (
        first["said"]
    )
    assert second["said"] == "", "rank 0 alone prints"
    return runs / "whole"


def test_a_run_leaves_what_the_tree_lists(whole: Path) -> None:
    step = whole / "checkpoints" / "000008"
    verify(step)
    assert (whole / "checkpoints" / "last").resolve() == step
    files = {str(path.relative_to(step)) for path in step.rglob("*") if path.is_file()}
    weights = {"config.json", "train_config.json", "model.safetensors", "policy_preprocessor.json",
               "policy_preprocessor_step_0_normalizer_processor.safetensors", "policy_postprocessor.json",
               "policy_postprocessor_step_0_unnormalizer_processor.safetensors"}  # fmt: skip
    assert files == {
        "manifest.json",
        *(f"{folder}/{name}" for folder in ("pretrained_model", "pretrained_model_ema") for name in weights),
        *(f"training_state/{name}" for name in (
            "training_step.json", "rng_state.safetensors", "scheduler_state.json", "optimizer_param_groups.json",
            "ema_state.safetensors", "optimizer_0/.metadata", "optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp",
        )),
    }  # fmt: skip
    record = json.loads((step / "training_state" / "training_step.json").read_text())
    # 21 frames to train on, 6 of them at each step: four steps to an epoch, the last one filled up.
    assert {name: record[name] for name in ("step", "epoch", "offset", "samples_seen", "optimizer_updates")} == {
        "step": 8, "epoch": 2, "offset": 0, "samples_seen": 48, "optimizer_updates": 4,
    }  # fmt: skip
    assert (record["batch_size"], record["dp_world_size"], record["grad_accum_steps"]) == (3, 2, 2)
    averages = tensors(step, "training_state/ema_state.safetensors")
    assert int(averages.pop("updates")) == 4, "the average follows applied updates, not steps"
    assert equal(averages, tensors(step, "pretrained_model_ema/model.safetensors"))
    assert not equal(averages, tensors(step))


def test_metrics_are_those_of_all_ranks(whole: Path) -> None:
    steps = rows(whole)
    assert sorted(steps) == list(range(1, 9))
    for number, row in steps.items():
        assert row["sft/loss"] == pytest.approx(row["sft/mse"]) and row["sft/lr"] == pytest.approx(3e-3)
        assert ("sft/grad_norm" in row) == (number % 2 == 0), "a norm is known where a window ends"
        assert row["perf/samples_per_s"] == pytest.approx(6 / row["timing_s/step"])
        assert row["timing_s/data"] <= row["timing_s/train"] and not any("note" in n or "flag" in n for n in row)
    assert "val/loss" in steps[8] and "val/loss" not in steps[4]


def test_resumed_at_the_same_size_it_is_the_uninterrupted_run(whole: Path, start: Start, runs: Path) -> None:
    """Dropout, optimizer, average and order of the data: weights and losses are equal bit for bit."""
    start("halves", "steps=4", "parallelism.dp_shard=2")
    first = runs / "halves" / "checkpoints" / "last"
    said = start.resume("--resume=true", f"--config_path={first}/pretrained_model/train_config.json", "steps=8")[0]
    assert "resumed from step 4 (epoch 1, 0 samples into it); optimizer updates so far: 2" in said["said"]
    ours, theirs = (folder / "checkpoints" / "000008" for folder in (runs / "halves", whole))
    for name in ("pretrained_model/model.safetensors", "training_state/ema_state.safetensors",
                 "training_state/rng_state.safetensors"):  # fmt: skip
        assert equal(tensors(ours, name), tensors(theirs, name)), name
    found, expected = rows(runs / "halves"), rows(whole)
    assert [found[step]["sft/loss"] for step in range(5, 9)] == [expected[step]["sft/loss"] for step in range(5, 9)]
    assert found[8]["val/loss"] == expected[8]["val/loss"]


def test_another_world_goes_on_where_the_data_stood(whole: Path, start: Start, runs: Path) -> None:
    moved = runs / "moved"
    shutil.copytree(whole, moved, symlinks=True)
    shutil.rmtree(moved / "checkpoints" / "000008")
    said = start.resume(
        "resume=true", f"config_path={moved}", "steps=5", "--optimizer.lr=1e-4",
        "accelerator.gradient_accumulation.steps=1", world=1,
    )[0]["said"]  # fmt: skip
    assert "resumed from step 4" in said
    assert "3 x 2 workers became 3 x 1" in said and said.count("differs from the checkpoint's") == 1
    assert "grad_accum_steps: 2 -> 1" in said and "dp_world_size: 2 -> 1" in said
    step = rows(moved)[5]
    assert step["sft/lr"] == pytest.approx(1e-4), "the learning rate of the command line wins"
    record = json.loads((moved / "checkpoints/000005/training_state/training_step.json").read_text())
    assert (record["epoch"], record["offset"], record["samples_seen"]) == (1, 3, 27)
    assert (record["dp_world_size"], record["optimizer_updates"]) == (1, 3)
    assert not (moved / "checkpoints/000005/training_state/optimizer_0").exists(), "one process writes one file"


def test_a_run_that_is_done_has_nothing_left(whole: Path, start: Start) -> None:
    said = start.resume("--resume=true", f"--config_path={whole}/checkpoints")[0]["said"]
    assert "Nothing is left to do" in said and "steps" in said


def test_a_step_is_known_whatever_its_folder_is_called(whole: Path, start: Start, runs: Path) -> None:
    best = runs / "best"
    shutil.copytree(whole / "checkpoints" / "000008", best)
    said = start.resume("--resume=true", f"--config_path={best}")[0]["said"]
    assert "Nothing is left to do" in said and "is of step 8" in said


def test_a_folder_with_a_run_is_not_overwritten(whole: Path, start: Start) -> None:
    first, second = start("whole", "--resume=false", fail=True)
    assert first["error"].startswith("RunExists: ") and "there is a run in" in first["error"]
    assert second["error"] == "SystemExit: 1", "rank 0 has said it"


def test_the_policy_learns_and_its_processors_travel_with_it(start: Start, runs: Path, demonstrations: Path) -> None:
    """Clone a linear law, then act with nothing but what the checkpoint holds; in and out in the units of the data."""
    from bc_policy import BcConfig, build

    start("learns", "steps=80", "model.chunk_size=1", "data.source_options.chunk_size=1", "batch_size=8",
          "accelerator.gradient_accumulation.steps=1", "save_freq=-1", "model.dropout=0", "optimizer.lr=1e-2",
          "optimizer.lr_scheduler_type=cosine", "sft.normalization={action: min_max}")  # fmt: skip
    steps = rows(runs / "learns")
    assert steps[80]["sft/loss"] < 0.02 * steps[1]["sft/loss"]
    folder = runs / "learns" / "checkpoints" / "last" / "pretrained_model_ema"
    policy = build(BcConfig(path=str(folder), chunk_size=1), torch.float32).eval()
    before, after = Pipeline.load(folder, PREPROCESSOR), Pipeline.load(folder, POSTPROCESSOR)
    states = torch.tensor([state_at(1, frame) for frame in range(4)])
    with torch.no_grad():
        actions = after({"action": policy(forward_inputs=before({"observation.state": states}))["actions"]})
    wanted = torch.tensor([action_at(1, frame) for frame in range(4)])
    torch.testing.assert_close(actions["action"][:, 0], wanted, atol=0.35, rtol=0)


def test_on_resume_the_statistics_of_the_checkpoint_win(
    whole: Path, start: Start, runs: Path, demonstrations: Path
) -> None:
    copied, other = runs / "statistics", runs / "other"
    shutil.copytree(whole, copied, symlinks=True)
    shutil.rmtree(copied / "checkpoints" / "000008")
    shutil.copytree(demonstrations, other)
    statistics = json.loads((other / "meta/stats.json").read_text())
    statistics["action"]["mean"] = [100.0, 100.0]
    (other / "meta/stats.json").write_text(json.dumps(statistics))
    said = start.resume("resume=true", f"config_path={copied}", "steps=6", f"data.source_options.root={other}")[0]
    assert "differ from those of the checkpoint, which are used" in said["said"]
    assert rows(copied)[5]["sft/loss"] == rows(whole)[5]["sft/loss"]
    name = "pretrained_model/policy_preprocessor_step_0_normalizer_processor.safetensors"
    assert equal(tensors(copied / "checkpoints/000006", name), tensors(whole / "checkpoints/000008", name))


def test_ranks_with_other_configurations_do_not_start(
    ranks: RankPool, runs: Path, demonstrations: Path
) -> None:
    path = runs / "differs.yaml"
    path.write_text(yaml.safe_dump(configuration(demonstrations, runs / "differs", "numbers")))
    first, second = ranks.run(
        sft_ranks.train_differently, free_port(), str(path), world=2, process_group=False, timeout_s=60
    )
    assert all("differ from those of rank 0 in sft.optim.lr" in rank["error"] for rank in (first, second))


def test_a_rank_that_fails_ends_all_with_its_message(start: Start) -> None:
    """Rank 0 waits for it in a collective; it must say whose fault that is, and end."""
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        start("fails", "data.source_options={fail_rank: 1, fail_at: 3}", "steps=50", source="numbers")
    assert "Rank 1 on" in str(caught.value) and "failed: OSError: the disk of this rank is gone" in str(caught.value)
    assert time.monotonic() - began < 60
