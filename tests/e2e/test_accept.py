"""`plugrl accept` with training: a healthy platform passes against cpu's curve, a wrong reduction fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plugrl.acceptance.record import REWARD
from plugrl.cli.app import run
from plugrl.config.schema import RunConfig
from plugrl.errors import WorkerDied
from plugrl.tracking import RunDirectory, Tracker

REFERENCE = Path(__file__).parent / "accept_tiny.json"
"""The configuration below on cpu, written by --make-reference."""

STEPS = 24


def accept(cli: Any, name: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Train and judge a baseline that learns in seconds: its reward rises from 0.3 to nearly 1 within 30 steps.

    Returns the command and what acceptance.json says.
    """
    path = cli.write(
        "tiny",
        data={"train_batch_size": 16},
        cluster={"component_placement": {"actor": "0-1", "rollout": 2}},
        actor={"ppo_mini_batch_size": 8, "optim": {"lr": 2e-3}},
        rollout={"n": 8},
        trainer={"total_training_steps": STEPS, "save_freq": -1, "test_freq": -1, "val_before_train": False},
    )
    out = cli.folder / name
    given = ["--baseline", str(path), "--reference", str(REFERENCE), "--output", str(out), *arguments]
    done = cli.run("accept", *given)
    found = out / "acceptance.json"
    assert found.exists(), done.stdout + done.stderr
    return done, json.loads(found.read_text())


@pytest.mark.slow
def test_cpu_passes_and_its_run_makes_a_reference(cli: Any) -> None:
    done, found = accept(cli, "accept_cpu", "--platform", "cpu")
    out = cli.folder / "accept_cpu"
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().splitlines()[-1] == f"PASS: {out / 'acceptance.html'}"
    assert found["platform"] == "cpu" and found["steps"] == {"planned": STEPS, "done": STEPS}
    assert found["configuration_differs"] == [] and found["seed"] == 42
    own = cli.folder / "own.json"
    made = cli.run("accept", "--make-reference", str(own), "--check", str(out))
    assert made.returncode == 0, made.stdout + made.stderr
    assert json.loads(own.read_text())["curves"][0]["rewards"] == pytest.approx(found["rewards"], abs=1e-5)


@pytest.mark.slow
def test_the_fake_accelerator_passes(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PLATFORM", "vdev")
    monkeypatch.setenv("VDEV_DEVICES", "3")
    done, found = accept(cli, "accept_vdev")
    assert done.returncode == 0, done.stdout + done.stderr
    assert found["platform"] == "vdev" and found["configuration_differs"] == []
    # The random numbers are the same, and so is the arithmetic, nearly: far below what the rules ask for.
    assert next(rule["measured"] for rule in found["rules"] if rule["name"] == "distance") < 0.01


@pytest.mark.slow
def test_a_wrong_reduction_fails(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDEV_DEVICES", "3")
    monkeypatch.setenv("VDEV_FAULT", "bad_reduce")
    done, found = accept(cli, "accept_bad_reduce", "--platform", "vdev", "--steps", "20")
    assert done.returncode == 1, done.stdout + done.stderr
    failed = {rule["name"] for rule in found["rules"] if not rule["passed"]}
    assert found["steps"]["done"] == 20 and {"trend", "distance", "gain"} <= failed, failed


# --------------------------------------------------------------------- without training
@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Puts a run in the place of training: the rewards of the reference for the tiny baseline."""
    import plugrl.runners.main

    given: list[RunConfig] = []

    def run_train(config: RunConfig) -> None:
        given.append(config)
        run = RunDirectory(config.trainer.default_local_dir)
        run.start(config)
        rewards = json.loads(REFERENCE.read_text())["curves"][0]["rewards"]
        with Tracker(["jsonl"], run, config) as tracker:
            tracker.start_phase("rl", STEPS)
            for step in range(1, (config.trainer.total_training_steps or STEPS) + 1):
                if step == 21 and config.actor.optim.lr == 1.0:
                    raise WorkerDied("actor rank 1 is gone", group="actor", rank=1)
                tracker.log({REWARD: rewards[step - 1]}, step)

    monkeypatch.setattr(plugrl.runners.main, "run_train", run_train)
    return given


def test_a_dead_worker_is_the_platforms_failure(
    trained: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ["--reference", str(REFERENCE), "--output", str(out), "--steps", "24", "actor.optim.lr=1.0"]
    assert run(["accept", "--platform", "cpu", *given]) == 1
    captured = capsys.readouterr()
    assert "complete: the run ended with WorkerDied: actor rank 1 is gone" in captured.out and "FAIL: " in captured.out
    assert "actor.optim.lr: 1.0, in the reference 0.002" in captured.err
    found = json.loads((out / "acceptance.json").read_text())
    assert found["error"] == "WorkerDied: actor rank 1 is gone" and found["steps"] == {"planned": 24, "done": 20}
    assert "What ended the run" in (out / "acceptance.html").read_text()


def test_the_run_gets_platform_folder_and_steps(
    trained: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["accept", "--platform", "CPU", "--reference", str(REFERENCE), "--steps", "20", "trainer.seed=7"]) == 0
    (config,) = trained
    assert config.platform == "cpu" and config.trainer.total_training_steps == 20 and config.trainer.seed == 7
    assert Path(config.trainer.default_local_dir) == tmp_path / "outputs/acceptance/quickstart-cpu"
    assert config.trainer.resume == "disable" and config.actor.optim.total_training_steps == 220


def test_a_reference_of_several_seeds_is_trained_seed_by_seed(trained: list[RunConfig], tmp_path: Path) -> None:
    made = ["accept", "--platform", "cpu", "--make-reference", str(tmp_path / "r.json"), "--output", str(tmp_path)]
    assert run([*made, "--seeds", "3,1", "--steps", "20", "--threshold", "max_fall=0.3"]) == 0
    assert [config.trainer.default_local_dir for config in trained] == [str(tmp_path / f"seed{n}") for n in (3, 1)]
    reference = json.loads((tmp_path / "r.json").read_text())
    assert [curve["seed"] for curve in reference["curves"]] == [3, 1] and reference["thresholds"] == {"max_fall": 0.3}
    assert reference["baseline"] == "quickstart" and reference["platform"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--platform", "cqu"], "platform: "),
        (["--platform", "cpu", "--steps", "10"], "the rules need at least 20 steps, got 10"),
        (["--platform", "cpu", "actor.optim.lrr=1"], "actor.optim.lr"),
        (["--platform", "cpu", "trainer.logger=[console]"], "trainer.logger: the acceptance reads"),
        (["--platform", "cpu", "--output=x", "trainer.default_local_dir=y"], "give the folder with --output"),
    ],
)
def test_a_mistake_ends_before_training(
    trained: list[RunConfig], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["accept", "--reference", str(REFERENCE), *arguments]) == 2
    assert message in capsys.readouterr().err and not trained


# --------------------------------------------------------------------- the baseline itself
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("fault", "code"), [("", 0), ("bad_reduce", 1)])
def test_the_quickstart_on_the_fake_accelerator(fault: str, code: int, tmp_path: Path) -> None:
    """Against the reference that comes with the package."""
    command = [sys.executable, "-m", "plugrl", "accept", "--platform", "vdev", "--output", str(tmp_path / "run")]
    environment = {**os.environ, "VDEV_DEVICES": "3", "VDEV_FAULT": fault}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7000, check=False)
    assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
