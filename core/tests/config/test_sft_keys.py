"""Supervised training under the key names of other trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plugrl.config import RunConfig, load_config
from plugrl.errors import ConfigError

from .conftest import BASE

pytestmark = pytest.mark.usefixtures("installed")


def load(write: Any, *overrides: str) -> RunConfig:
    return load_config(write(BASE), overrides, task="sft")


def test_the_names_of_lerobots_trainer_mean_our_own(tmp_path: Path, write: Any) -> None:
    seed = load(
        write, "--batch_size=8", "--steps=7", "--save_freq=5", "--log_freq=3", "--seed=1000", "--job_name=act",
        f"--output_dir={tmp_path}/out", "--accelerator.gradient_accumulation.steps=4", "--optimizer.lr=3e-4",
        "--optimizer.clip_grad=10",
    )  # fmt: skip
    ours = load(
        write, "sft.batch_size=8", "sft.total_steps=7", "trainer.save_freq=5", "trainer.log_freq=3",
        "trainer.seed=1000", "trainer.experiment_name=act", f"trainer.default_local_dir={tmp_path}/out",
        "sft.gradient_accumulation_steps=4", "sft.optim.lr=3e-4", "sft.optim.clip_grad=10",
    )  # fmt: skip
    assert seed == ours
    assert (seed.sft.batch_size, seed.sft.total_steps, seed.sft.gradient_accumulation_steps) == (8, 7, 4)
    assert seed.sft.optim.lr == 3e-4 and seed.trainer.default_local_dir == f"{tmp_path}/out"


@pytest.mark.parametrize(("given", "meant"), [("true", "last"), ("false", "new"), ("auto", "auto")])
def test_resume_is_also_a_flag(write: Any, given: str, meant: str) -> None:
    assert load(write, f"--resume={given}").trainer.resume == meant


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("resume=lats", "did you mean last"),
        ("batch_size=0", "sft.batch_size"),
        ("accelerator.gradient_accumulation.steps=0", "sft.gradient_accumulation_steps"),
        ("sft.micro_batch_size_per_gpu=65", "sft.train_batch_size, which is 64"),
        ("sft.normalization.action=unit", "sft.normalization.action"),
    ],
)
def test_values_that_mean_nothing_are_refused(write: Any, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write, override)
