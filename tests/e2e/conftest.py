"""Whole runs through the command line, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugrl.testing.fork_server import shared_server

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240

TINY: dict[str, Any] = {
    "model": {
        "model_type": "causal_lm",
        "config": {
            "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 32,
            "tie_word_embeddings": True,
        },
        "tokenizer": {"type": "characters", "alphabet": "0123456789+-="},
        "precision": "fp32",
    },
    "data": {
        "source": "arithmetic", "source_options": {"min": 0, "max": 9, "num_train": 64, "num_val": 16},
        "max_prompt_length": 8, "max_response_length": 4, "train_batch_size": 8,
    },
    "cluster": {"component_placement": {"actor": "0-1", "rollout": 2}},
    "actor": {"strategy": "fsdp2", "ppo_mini_batch_size": 4, "optim": {"lr": 1e-3}},
    "rollout": {"n": 4},
    "reward": {"function": "plugrl_e2e_reward:digits"},
    "algorithm": {"adv_estimator": "grpo"},
    "trainer": {"total_training_steps": 4, "save_freq": 2, "test_freq": 2, "logger": ["console", "jsonl"]},
}  # fmt: skip

REWARD = '''
def digits(text, ground_truth, extra_info):
    """A reward with signal from the first step on: the share of even digits."""
    return {"score": sum(c in "02468" for c in text) / 4, "acc": float(text == ground_truth), "parsed": True}
'''


@dataclass
class Cli:
    """Runs ``plugrl`` in a folder of its own, with the reward importable in driver and workers."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, name: str, **sections: dict[str, Any]) -> Path:
        """Write a configuration: the tiny one with sections replaced key by key."""
        values = json.loads(json.dumps(TINY))
        for section, keys in sections.items():
            values.setdefault(section, {}).update(keys)
        values["trainer"]["default_local_dir"] = str(self.folder / name)
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def environment(self) -> dict[str, str]:
        """The variables of a command; writes the reward that they make importable."""
        (self.folder / "plugrl_e2e_reward.py").write_text(REWARD)
        return {**os.environ, "PYTHONPATH": str(self.folder)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command without waiting for it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "plugrl", *arguments],
            cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in a process that begins with what it would import first."""
        return shared_server().run(
            "-m", "plugrl", *arguments, cwd=self.folder, env=self.environment(), timeout=DEADLINE_S
        )

    def metrics(self, name: str) -> dict[int, dict[str, float]]:
        """Metrics of the reinforcement-learning steps of a run, by step."""
        rows = [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row for row in rows if row["phase"] == "rl"}


@pytest.fixture(scope="session")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """The command line in a temporary folder."""
    line = Cli(tmp_path_factory.mktemp("runs"))
    yield line
    for process in line.started:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=DEADLINE_S)


@pytest.fixture(scope="session")
def finished(cli: Cli) -> Path:
    """The folder of an uninterrupted GRPO run of four steps on two FSDP2 ranks and a rollout worker."""
    done = cli.run("train", str(cli.write("finished")))
    assert done.returncode == 0, done.stdout + done.stderr
    return cli.folder / "finished"
