"""A user's mistake is one readable message and exit code 1, before any worker is started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown key": (["actor.optim.lrr=1"], ("actor.optim.lrr", "lr")),
    "wrong type": (["rollout.n=many"], ("rollout.n", "many")),
    "unknown model": (["model.model_type=causal_ml"], ("causal_ml", "causal_lm")),
    "unknown engine": (["actor.strategy=fsdp3"], ("fsdp3", "fsdp2", "ddp")),
    "unknown platform": (["platform=tpux"], ("tpux", "cpu")),
    "unknown reward": (["reward.function=null", "reward.name=gsm9k"], ("gsm9k", "gsm8k")),
    "unknown reward module": (["reward.function=no_such_module:f"], ("no_such_module",)),
    "unknown estimator": (["algorithm.adv_estimator=grpoo"], ("grpoo", "grpo")),
    "unknown rollout": (["rollout.name=hg"], ("hg", "hf")),
    "unknown loss": (["actor.policy_loss.loss_mode=vanila"], ("vanila", "vanilla")),
    "unknown logger": (["trainer.logger=[console,wand]"], ("wand", "wandb")),
    "missing data file": (
        ["data.source=files", "data.source_options={}", "data.train_files=[nowhere.jsonl]"], ("nowhere.jsonl",)
    ),
    "missing logger package": (["trainer.logger=[console,wandb]"], ("wandb", "pip install")),
    "device that is not there": (["cluster.component_placement.rollout=99"], ("cluster.component_placement", "99")),
    "batch that does not divide": (["actor.ppo_mini_batch_size=3"], ("actor.ppo_mini_batch_size", "3")),
    "resume from nowhere": (["trainer.resume=/nowhere"], ("trainer.resume", "/nowhere")),
}  # fmt: skip


SLOW = {"unknown reward module", "missing logger package", "resume from nowhere", "batch that does not divide"}
"""Cases for which the command imports everything first, where others of the kind are run by default."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in SLOW else ()) for case in CASES]
)
def test_one_message_and_exit_code_1(cli: Any, case: str) -> None:
    overrides, expected = CASES[case]
    done = cli.run("train", str(cli.write("bad")), *overrides)
    assert done.returncode == 1, done.stdout + done.stderr
    for text in expected:
        assert text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) <= 4, done.stderr
    assert not (cli.folder / "bad").exists(), "a run directory was made"


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("missing data file", marks=pytest.mark.slow),
        pytest.param("missing logger package", marks=pytest.mark.slow),
        pytest.param("device that is not there", marks=pytest.mark.slow),
    ],
)
def test_check_says_what_the_run_would_say(cli: Any, case: str) -> None:
    """What is wrong with other things than keys and names is found without the run too, unless it is not wanted."""
    overrides, expected = CASES[case]
    done = cli.run("config", "check", str(cli.write("bad")), *overrides)
    assert done.returncode == 1 and all(text in done.stderr for text in expected), done.stdout + done.stderr
    assert not (cli.folder / "bad").exists()


@pytest.mark.parametrize("command", [["train"], pytest.param(["config", "check"], marks=pytest.mark.slow)])
def test_an_engine_that_cannot_be_loaded_is_told_before_anything_starts(
    cli: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    (cli.folder / "acme_extension.py").write_text(
        "from plugrl.engines.registry import ENGINES\n"
        "ENGINES.register_target(('language_model', 'acme', '*', None), 'acme_sdk_that_is_missing:Engine')\n"
    )
    monkeypatch.setenv("RLINF_EXT_MODULE", "acme_extension")
    done = cli.run(*command, str(cli.write("bad")), "actor.strategy=acme")
    assert done.returncode == 1 and "acme_sdk_that_is_missing" in done.stderr, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and not (cli.folder / "bad").exists()


def test_check_passes_what_runs_and_can_be_asked_for_the_keys_alone(cli: Any) -> None:
    done = cli.run("config", "check", str(cli.write("good")))
    assert done.returncode == 0 and done.stdout.endswith("no problem found.\n"), done.stderr
    done = cli.run("config", "check", str(cli.write("good")), "cluster.component_placement.rollout=99", "--keys-only")
    assert done.returncode == 0 and "devices unchecked" in done.stdout, done.stderr


def test_a_malformed_line_is_named(cli: Any) -> None:
    rows = [json.dumps({"prompt": "1+1=", "ground_truth": "2"}), "{broken", "{}"]
    (cli.folder / "broken.jsonl").write_text("\n".join(rows))
    done = cli.run(
        "train", str(cli.write("bad")), "data.source=files", "data.source_options={}",
        f"data.train_files=[{cli.folder / 'broken.jsonl'}]",
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"broken\.jsonl.*(line |:)2", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_the_plugin_that_failed_is_named_where_it_is_missed(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disabled plugin explains why the model type that it provides is unknown."""
    monkeypatch.setenv("PLUGRL_PLUGINS", "-models_hf")
    done = cli.run("train", str(cli.write("bad")))
    assert done.returncode == 1
    assert "causal_lm" in done.stderr and "models" in done.stderr and "PLUGRL_PLUGINS" in done.stderr, done.stderr


def test_debug_shows_the_traceback(cli: Any) -> None:
    done = cli.run("train", str(cli.write("bad")), "rollout.n=many", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert not Path(cli.folder / "bad").exists()
