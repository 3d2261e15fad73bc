"""What a run folder says, and a damaged or foreign one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plugrl.acceptance.record import REWARD, deciding, read_record
from plugrl.errors import DataError


def test_the_steps_of_reinforcement_learning_are_read(write_run: Callable[..., Path]) -> None:
    record = read_record(write_run([0.1, 0.2, 0.3]))
    assert record.rewards == (0.1, 0.2, 0.3) and record.last_step == 3
    assert (record.platform, record.seed, record.planned) == ("cpu", 42, 100)
    assert not record.not_finite and record.skipped_steps == 0
    assert record.versions["packages"] == {"torch": "2.13.0"}


def test_a_null_is_seen_and_ends_the_curve(write_run: Callable[..., Path]) -> None:
    record = read_record(write_run([0.1, 0.2, None, 0.4]))
    assert record.rewards == (0.1, 0.2) and record.last_step == 4
    assert record.not_finite == (f"{REWARD} of step 3",)


def test_a_step_that_is_missing_is_seen(write_run: Callable[..., Path]) -> None:
    folder = write_run([0.1, 0.2, 0.3])
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 2,' not in line))
    record = read_record(folder)
    assert record.rewards == (0.1,) and record.not_finite == (f"{REWARD} of step 2",)


def test_losses_and_norms_count_in_both_phases_and_other_metrics_do_not(write_run: Callable[..., Path]) -> None:
    folder = write_run([0.1, 0.2, 0.3])
    rows = [
        {"step": 2, "phase": "sft", "sft/loss": None},
        {"step": 4, "phase": "rl", REWARD: 0.4, "actor/pg_loss": float("nan"), "actor/skipped_steps": 2.0},
        {"step": 5, "phase": "rl", REWARD: 0.5, "training/rollout_actor_probs_pearson_corr": None},
    ]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row).replace("NaN", "null") + "\n" for row in rows)
    record = read_record(folder)
    assert record.not_finite == ("sft/loss of sft step 2", "actor/pg_loss of step 4")
    assert record.skipped_steps == 2 and len(record.rewards) == 5


def test_a_folder_that_is_none_of_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder of a run: it has no config.yaml"):
        read_record(tmp_path)


def test_a_run_without_steps_is_refused_unless_it_failed(write_run: Callable[..., Path]) -> None:
    folder = write_run([])
    with pytest.raises(DataError, match="no step of reinforcement learning in metrics.jsonl"):
        read_record(folder)
    record = read_record(folder, error="WorkerDied: gone")
    assert record.rewards == () and record.last_step == 0 and record.error == "WorkerDied: gone"


def test_what_decides_leaves_out_place_seed_and_length() -> None:
    values = {
        "platform": "cpu", "cluster": {"component_placement": {"actor": 0}}, "trainer": {"seed": 1},
        "model": {"path": "/home/x/Qwen3-0.6B", "cache_dir": "/tmp", "lora": None},
        "actor": {"optim": {"lr": 1e-6}, "checkpoint": {"format": "dcp"}, "options": {}},
        "data": {"train_files": ["/a/train.parquet"]},
    }  # fmt: skip
    assert deciding(values) == {
        "actor.optim.lr": 1e-6, "actor.options": {}, "data.train_files": ["train.parquet"], "model.lora": None,
        "model.path": "Qwen3-0.6B",
    }  # fmt: skip
