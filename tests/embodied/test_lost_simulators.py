"""Simulators that are killed, hang or raise in a run: what they did is dropped, all else is learned from, and no row of
the trajectory is another scene's; three failures in a row end the run with what happened."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from plugrl.envs.episodes import next_seed
from plugrl.runtime.process import is_alive
from plugrl.testing.fork_server import ForkedProcess, shared_server
from plugrl.workers.embodied.scenes import Scenes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tabletop_cnn.yaml"
SCENES, PROCESSES, LENGTH = 16, 2, 8
LOST = SCENES // PROCESSES
"""Scenes of a simulator, all of which have an episode that runs."""
PATIENCE = 3
"""Actions of an episode before an order is carried out."""
WAIT_S = 240.0
CORRIDOR: dict[str, Any] = {
    "model": {"model_type": "mlp_policy", "state_dim": 1, "action_dim": 1, "add_value_head": True,
              "hidden_sizes": [32, 32], "init_std": 0.5, "precision": "fp32"},
    "env": {"train": {"env_type": "failing_corridor", "total_num_envs": SCENES, "max_episode_steps": LENGTH,
                      "max_steps_per_rollout_epoch": 2 * LENGTH}},
    "actor": {"ppo_mini_batch_size": 64, "ppo_epochs": 4, "optim": {"lr": 3e-3}},
    "algorithm": {"gamma": 0.99, "lam": 0.95},
    "trainer": {"total_training_steps": 30, "seed": 3, "save_freq": 30},
}  # fmt: skip


class Run:
    """`plugrl train` in a folder, with simulators that fail when they are told to."""

    def __init__(self, folder: Path, values: dict[str, Any], *, step_timeout_s: float) -> None:
        self.folder, self.orders, self.witness = folder, folder / "orders", folder / "witness"
        for path in (self.orders, self.witness):
            path.mkdir()
        simulators: dict[str, Any] = {"processes": PROCESSES, "step_timeout_s": step_timeout_s}
        simulators |= {"orders": str(self.orders), "patience": PATIENCE}
        values = json.loads(json.dumps(values))
        values["env"]["train"].setdefault("init_params", {}).update(simulators)
        values["trainer"]["default_local_dir"] = str(folder / "run")
        (folder / "run.yaml").write_text(yaml.safe_dump(values))

    @contextmanager
    def started(self, **variables: str) -> Iterator[ForkedProcess]:
        """Let it run; its output is in files."""
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "RLINF_EXT_MODULE": "failing_extension"}
        with (self.folder / "out").open("wb") as out, (self.folder / "err").open("wb") as err:
            process = shared_server().start(
                "-m", "plugrl", "train", "run.yaml", cwd=self.folder, env=env | variables, stdout=out, stderr=err
            )
            try:
                yield process
            finally:
                process.kill()

    def said(self) -> str:
        """Return what it wrote."""
        return (self.folder / "out").read_text() + (self.folder / "err").read_text()

    def rows(self) -> list[dict[str, float]]:
        """Metrics, step after step; of the lines that are whole."""
        path = self.folder / "run" / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def dropped(self) -> dict[int, float]:
        """Dropped episodes by step, where there are any."""
        return {int(row["step"]): row["env/num_dropped"] for row in self.rows() if row["env/num_dropped"]}

    def until(self, process: ForkedProcess, what: str, is_so: Callable[[], bool]) -> float:
        """Wait and return the seconds that it took."""
        began = time.monotonic()
        while not is_so():
            assert process.poll() is None, f"the run ended before {what}: {self.said()}"
            assert time.monotonic() - began < WAIT_S, f"no {what}: {self.said()}"
            time.sleep(0.02)
        return time.monotonic() - began

    def strike(self, process: ForkedProcess, fault: str) -> float:
        """Let a simulator fail; return the seconds until the step is over in which it did."""
        known = len(self.dropped())
        (self.orders / fault).touch()
        return self.until(process, f"step without the episodes of {fault}", lambda: len(self.dropped()) > known)

    def left(self) -> list[int]:
        """Return the simulators that are still there."""
        pids = [int(path.name.partition("-")[2]) for path in self.orders.glob("simulator-*")]
        assert len(pids) >= PROCESSES
        return [pid for pid in pids if is_alive(pid)]


def test_a_run_goes_on_without_the_episodes_of_lost_simulators_and_mixes_no_row(tmp_path: Path) -> None:
    run = Run(tmp_path, CORRIDOR, step_timeout_s=3.0)
    with run.started(PLUGRL_TEST_WITNESS=str(run.witness)) as process:
        run.until(process, "first step", lambda: bool(run.rows()))
        took = {fault: run.strike(process, fault) for fault in ("kill", "hang", "raise")}
        assert process.wait(WAIT_S) == 0, run.said()
    print(took)
    assert max(took.values()) < 20, took
    rows, steps = run.rows(), CORRIDOR["trainer"]["total_training_steps"]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert list(run.dropped().values()) == [LOST] * 3, run.dropped()
    assert "8 episodes were dropped, because their simulator died" in run.said()
    for number, row in enumerate(rows, 1):
        assert_whole(run.witness / f"step-{number}.safetensors", number, row)
    assert rows[-1]["env/return"] > rows[0]["env/return"] + 0.5, "it learned to walk all the same"
    assert (tmp_path / "run" / "checkpoints" / f"{steps:06d}").is_dir()
    assert run.left() == []


def assert_whole(path: Path, step: int, row: dict[str, float]) -> None:
    """Check a step's trajectory against what the corridor does, place by place, and its row of metrics."""
    from safetensors.numpy import load_file

    found = {name: value.squeeze() for name, value in load_file(path).items()}
    scenes = Scenes(SCENES, 1, 1)
    chunks, lost, returns = 2 * LENGTH, 0, []
    for scene, seed in enumerate(scenes.training_seeds(0, seed=CORRIDOR["trainer"]["seed"], step=step, epoch=0)):
        began = 0
        state = start = first_state(seed)
        for at in range(chunks):
            where = (step, scene, at)
            assert found["states"][at, scene] == state, (where, "another scene's observation")
            action = np.clip(found["choice"][at, scene], -1, 1)
            if not found["executed"][at, scene]:
                assert not found["valid"][began : at + 1, scene].any(), (where, "a dropped episode counts")
                assert found["dones"][at + 1, scene] and not found["rewards"][at, scene], where
                assert at - began >= PATIENCE, (where, "it failed in an episode")
                lost += 1
            else:
                assert found["rewards"][at, scene] == action, (where, "another action's reward")
                state = state + action
                if not found["dones"][at + 1, scene]:
                    continue
                assert found["valid"][began : at + 1, scene].all(), (where, "a whole episode does not count")
                assert state >= 4 or at + 1 - began == LENGTH, where
                returns.append(state - start)
            began, seed = at + 1, next_seed(seed)
            state = start = first_state(seed)
        assert found["valid"][began:, scene].all(), (step, scene, "an episode that goes on does not count")
    counted = found["executed"] & found["valid"]
    assert row["training/rows"] == counted.sum(), step
    assert row["env/num_dropped"] == lost and row["env/num_trajectories"] == len(returns), step
    assert row["env/return"] == pytest.approx(np.mean(returns), abs=1e-4), step


def first_state(seed: int) -> np.float32:
    """Where the corridor begins."""
    return np.float32(np.random.default_rng(seed).random())


def test_the_example_goes_on_too_and_three_failures_in_a_row_end_it_with_their_cause(tmp_path: Path) -> None:
    values = yaml.safe_load(EXAMPLE.read_text())
    values["env"].pop("eval")
    values["env"]["train"] |= {"env_type": "failing_tabletop", "total_num_envs": SCENES}
    values["actor"]["ppo_mini_batch_size"] = 128
    values["trainer"] |= {"total_training_steps": 10000, "test_freq": -1, "save_freq": -1}
    run = Run(tmp_path, values, step_timeout_s=3.0)
    with run.started() as process:
        run.until(process, "first step", lambda: bool(run.rows()))
        took = {fault: run.strike(process, fault) for fault in ("kill", "hang", "raise")}
        assert list(run.dropped().values()) == [LOST] * 3, run.dropped()
        (run.orders / "always_raise").touch()
        began = time.monotonic()
        code = process.wait(WAIT_S)
    print(took, time.monotonic() - began)
    assert time.monotonic() - began < 30
    assert code == 1, run.said()
    told = (tmp_path / "err").read_text()
    message = told.partition("error: ")[2].splitlines()
    assert re.fullmatch(r"Simulator [01] failed 3 times in a row, so the environment is closed:", message[0]), told
    for number, line in enumerate(message[1:4], 1):
        assert line.startswith(f"{number}. Simulator") and "raised ArithmeticError: the joint is unstable" in line, told
    assert "in obey" in told and told.count("Traceback") == 1 and len(message) < 15, told
    assert run.left() == []
