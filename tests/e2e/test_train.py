"""A run leaves what it promises: metrics, samples, checkpoints that others read, a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from plugrl.checkpoints import verify


def test_every_step_has_verls_metrics(finished: Path, cli: Any) -> None:
    steps = cli.metrics("finished")
    assert sorted(steps) == [0, 1, 2, 3, 4]
    for name in (
        "critic/rewards/mean", "critic/advantages/mean", "actor/pg_loss", "actor/pg_clipfrac", "actor/grad_norm",
        "actor/lr", "response_length/mean", "prompt_length/mean", "timing_s/gen", "timing_s/update_actor",
        "timing_s/step", "perf/throughput", "training/global_step",
    ):  # fmt: skip
        assert all(name in steps[step] for step in (1, 2, 3, 4)), name
    assert "val-core/arithmetic/acc/mean@1" in steps[0]
    assert steps[4]["training/weight_version"] == 4


def test_rollout_and_actor_agree_on_the_probabilities(finished: Path, cli: Any) -> None:
    """The first ratio is 1: sampling and recomputation give the same log-probabilities, after every weight sync."""
    for step in (1, 2, 3, 4):
        assert cli.metrics("finished")[step]["training/rollout_probs_diff_max"] < 1e-5


def test_the_record_names_plugins_versions_and_configuration(finished: Path) -> None:
    plugins = json.loads((finished / "plugins.json").read_text())
    assert {"plugrl-engine-fsdp", "plugrl-models-hf", "plugrl-rollout-hf"} <= {
        record["distribution"] for record in plugins["plugins"]
    }
    assert json.loads((finished / "versions.json").read_text())["packages"]["torch"].startswith("2.")
    assert yaml.safe_load((finished / "config.yaml").read_text())["actor"]["ppo_mini_batch_size"] == 4


def test_the_report_holds_curves_and_samples(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "critic/rewards/mean" in page or "reward" in page.lower()
    assert "plugrl-engine-fsdp" in page
    assert (finished / "curves.png").stat().st_size > 10_000
    assert (finished / "samples.jsonl").read_text().count("\n") >= 4


def test_a_checkpoint_is_a_model_folder_for_transformers(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    step = finished / "checkpoints" / "000004"
    verify(step)
    assert (finished / "checkpoints" / "last").resolve() == step
    model = AutoModelForCausalLM.from_pretrained(step / "pretrained_model")
    tokenizer = AutoTokenizer.from_pretrained(step / "pretrained_model")
    ids = torch.tensor([tokenizer.encode("1+2=")])
    assert model(ids).logits.shape == (1, 4, model.config.vocab_size)


def test_eval_measures_a_checkpoint_as_the_run_did(finished: Path, cli: Any) -> None:
    done = cli.run(
        "eval", str(finished.parent / "finished.yaml"), "--checkpoint", str(finished / "checkpoints" / "000004")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    measured = cli.metrics("finished")[4]["val-core/arithmetic/acc/mean@1"]
    assert f"val-core/arithmetic/acc/mean@1: {measured:.4f}" in done.stdout
    assert "validating 16/16" in done.stdout


@pytest.mark.parametrize("ranks", ["0", "0-2"])
@pytest.mark.slow
def test_the_numbers_do_not_depend_on_the_number_of_ranks(finished: Path, cli: Any, ranks: str) -> None:
    """The same steps on one rank without sharding, and on three: equal to the two of FSDP2."""
    strategy = "ddp" if ranks == "0" else "fsdp2"
    name = f"ranks{ranks}"
    path = cli.write(
        name,
        cluster={"component_placement": {"actor": ranks, "rollout": "3-4"}},
        actor={
            "strategy": strategy,
            "ppo_mini_batch_size": 3 if ranks == "0-2" else 4,
            "ppo_micro_batch_size_per_gpu": 3,
        },
        data={"train_batch_size": 6 if ranks == "0-2" else 8},
        trainer={"total_training_steps": 2, "save_freq": -1, "test_freq": -1, "val_before_train": False},
    )
    done = cli.run("train", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    if ranks == "0-2":
        return  # Another batch size, since 8 x 4 rows do not fall evenly on 3 ranks: it is enough that it runs.
    expected, found = cli.metrics("finished"), cli.metrics(name)
    for step in (1, 2):
        for key in ("critic/rewards/mean", "actor/pg_loss", "actor/grad_norm", "actor/entropy"):
            assert found[step][key] == pytest.approx(expected[step][key], abs=2e-5, rel=2e-4), (step, key)


@pytest.mark.slow
def test_ppo_trains_a_critic_beside_the_policy(cli: Any) -> None:
    path = cli.write(
        "ppo",
        algorithm={"adv_estimator": "gae", "lam": 0.95},
        rollout={"n": 1},
        cluster={"component_placement": {"actor,critic": "0-1", "rollout": 2}},
        trainer={"total_training_steps": 3, "critic_warmup": 1, "save_freq": 3, "val_before_train": False},
    )
    done = cli.run("train", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = cli.metrics("ppo")
    assert "actor/pg_loss" not in steps[1] and "actor/pg_loss" in steps[2]
    assert all("critic/vf_loss" in steps[step] and "critic/vf_explained_var" in steps[step] for step in (1, 2, 3))
    verify(cli.folder / "ppo" / "checkpoints" / "000003")
    assert (cli.folder / "ppo" / "checkpoints" / "000003" / "critic" / "pretrained_model").is_dir()


@pytest.mark.slow
def test_kl_with_a_reference_starts_at_zero_and_grows_and_long_responses_cost(cli: Any) -> None:
    path = cli.write(
        "kl",
        reward={"overlong_buffer": {"enable": True, "len": 4, "penalty_factor": 2.0}},
        actor={"use_kl_loss": True, "kl_loss_coef": 0.01, "ppo_mini_batch_size": 8},
        cluster={"component_placement": {"actor,ref,rollout": 0}},
        trainer={"total_training_steps": 2, "save_freq": -1, "test_freq": -1, "val_before_train": False},
    )
    done = cli.run("train", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = cli.metrics("kl")
    assert steps[1]["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert steps[2]["actor/kl_loss"] > 0
    # The buffer is the whole response, so that each token costs penalty_factor / len; the share of even digits earns.
    for step in (1, 2):
        assert steps[step]["reward/overlong_penalty/mean"] == pytest.approx(-steps[step]["response_length/mean"] / 2)
        assert steps[step]["critic/score/mean"] < 0
