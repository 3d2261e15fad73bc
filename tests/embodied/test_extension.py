"""A model and an environment of somebody's own module, in every command and every worker; one replaces a built-in."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugrl.testing.fork_server import shared_server

pytestmark = pytest.mark.slow

DEADLINE_S = 280
CONFIG: dict[str, Any] = {
    "model": {"model_type": "walker", "hidden_size": 3, "action_dim": 1, "precision": "fp32"},
    "env": {
        "train": {"env_type": "corridor", "total_num_envs": 16, "group_size": 4, "auto_reset": False,
                  "max_episode_steps": 8},
        "eval": {"total_num_envs": 8},
    },
    "actor": {"ppo_mini_batch_size": 128, "optim": {"lr": 0.1}, "checkpoint": {"format": "dcp"}},
    "algorithm": {"adv_estimator": "grpo"},
    "cluster": {"component_placement": {"env": 0, "rollout": 1, "actor": "0-1"}},
    "trainer": {"total_training_steps": 4, "test_freq": 2, "save_freq": 2},
}  # fmt: skip


class Commands:
    """Runs `plugrl` with the extension module importable and named."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, **model: Any) -> str:
        """Write the configuration with changes of its model."""
        values = json.loads(json.dumps(CONFIG))
        values["model"].update(model)
        values["trainer"]["default_local_dir"] = str(self.folder / name)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        return str(path)

    def __call__(self, *arguments: str, extension: str = "corridor_extension") -> Any:
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RLINF_EXT_MODULE": extension}
        return shared_server().run("-m", "plugrl", *arguments, cwd=self.folder, env=env, timeout=DEADLINE_S)

    def rows(self, name: str) -> dict[int, dict[str, float]]:
        """Metrics by step."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return {row["step"]: row for row in map(json.loads, lines)}


@pytest.fixture(scope="module")
def plugrl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """The command line in a folder of its own."""
    yield Commands(tmp_path_factory.mktemp("extension"))


@pytest.fixture(scope="module")
def trained(plugrl: Commands) -> Path:
    """A run of the extension's model in the extension's environment, on two ranks."""
    done = plugrl("train", plugrl.write("walker"))
    assert done.returncode == 0, done.stdout + done.stderr
    return plugrl.folder / "walker"


def test_a_model_of_an_extension_is_trained_measured_and_converted(plugrl: Commands, trained: Path) -> None:
    rows = plugrl.rows("walker")
    assert rows[4]["env/return"] > rows[1]["env/return"], "it learned to walk"
    assert rows[1]["actor/ratio"] == pytest.approx(1.0, abs=1e-5)
    checkpoint = trained / "checkpoints" / "last"
    assert not (checkpoint / "pretrained_model" / "model.safetensors").exists(), "shards, until they are converted"
    converted = plugrl("checkpoint", "convert", str(checkpoint))
    assert converted.returncode == 0, converted.stdout + converted.stderr
    measured = plugrl("eval", plugrl.write("walker"), "--checkpoint", str(checkpoint))
    assert measured.returncode == 0, measured.stdout + measured.stderr
    assert f"eval/return: {rows[4]['eval/return']:.4f}" in measured.stdout


def test_a_forced_registration_takes_the_place_of_a_built_in(plugrl: Commands) -> None:
    config = plugrl.write("forced", model_type="cnn_policy")
    done = plugrl("train", config, "trainer.total_training_steps=1", "trainer.save_freq=-1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert plugrl.rows("forced")[1]["actor/ratio"] == pytest.approx(1.0, abs=1e-5)


def test_without_the_module_its_names_are_unknown_before_anything_starts(plugrl: Commands) -> None:
    done = plugrl("train", plugrl.write("unknown"), extension="")
    assert done.returncode == 1 and 'No env "corridor"' in done.stderr
    broken = plugrl("train", plugrl.write("unknown"), extension="no_such_module")
    assert broken.returncode == 1 and "no_such_module" in broken.stderr


def test_a_resumed_run_goes_on_exactly(plugrl: Commands, trained: Path) -> None:
    config = plugrl.write("resumed")
    done = plugrl("train", config, f"trainer.resume={trained / 'checkpoints' / '000002'}")
    assert done.returncode == 0, done.stdout + done.stderr
    whole, resumed = plugrl.rows("walker"), plugrl.rows("resumed")
    clocks = ("timing", "perf/", "time")
    for step in (3, 4):
        for name, value in whole[step].items():
            if not name.startswith(clocks):
                assert resumed[step][name] == value, (step, name)


@pytest.mark.parametrize(
    "placement", [{"env": 0, "rollout": 0, "actor": "0-1"}, {"env": 2, "rollout": 3, "actor": "0-1"}], ids=str
)
def test_numbers_are_the_same_wherever_components_are(plugrl: Commands, trained: Path, placement: Any) -> None:
    name = f"placed-{placement['env']}"
    where = f"cluster.component_placement={json.dumps(placement)}"
    done = plugrl("train", plugrl.write(name), where, "trainer.total_training_steps=2", "trainer.save_freq=-1")
    assert done.returncode == 0, done.stdout + done.stderr
    whole, other = plugrl.rows("walker"), plugrl.rows(name)
    for step in (1, 2):
        for key in ("env/return", "env/success_once", "actor/loss", "actor/grad_norm"):
            assert other[step][key] == whole[step][key], (step, key)
