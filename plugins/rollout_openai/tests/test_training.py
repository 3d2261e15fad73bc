"""A server with a tiny real model: its numbers are the policy's, and faults and a restart change no number of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("ray")

from plugrl.models import get_model
from plugrl.plugins import load_plugins
from plugrl.rollouts.base import SamplingParams
from plugrl_rollout_hf.backend import HFRolloutBackend
from plugrl_rollout_openai.server_backend import ServerRolloutBackend
from plugrl_rollout_openai.weights_folder import read_folder

from .fake_server import FakeServer

STEPS = 3
MODEL = {
    "model_type": "causal_lm", "precision": "fp32", "seed": 0,
    "config": {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 32,
               "tie_word_embeddings": True},
    "tokenizer": {"type": "characters", "alphabet": "0123456789+-="},
}  # fmt: skip
REWARD = '''
def digits(text, ground_truth, extra_info):
    """The share of even digits."""
    return {"score": sum(c in "02468" for c in text) / 4, "acc": float(text == ground_truth), "parsed": True}
'''


class RealModel:
    """A tiny policy behind the server."""

    def __init__(self) -> None:
        self._backend = HFRolloutBackend(MODEL, {"options": {"decoder": "transformers"}})
        self._backend.initialize()
        self._lock = threading.Lock()
        self.loads = 0

    def load(self, folder: str) -> None:
        """Take the weights of a folder."""
        with self._lock:
            self.loads += 1
            self._backend.load_weights(read_folder(Path(folder)), self.loads)

    def sample(self, prompt: tuple[int, ...], params: dict[str, Any], seed: int) -> tuple[list[int], list[float], str]:
        """Sample with the model."""
        asked = SamplingParams(
            max_new_tokens=params["count"], temperature=params["temperature"], stop_token_ids=tuple(params["stop"])
        )
        with self._lock:
            (done,) = self._backend.generate([prompt], asked, [seed])
        return [int(token) for token in done.tokens], done.logprobs.tolist(), done.finish_reason


def train(folder: Path, server: FakeServer) -> dict[int, dict[str, float]]:
    """Run a few steps and return their metrics."""
    folder.mkdir()
    config = {
        "model": MODEL,
        "data": {"source": "arithmetic", "max_prompt_length": 8, "max_response_length": 4, "train_batch_size": 8,
                 "source_options": {"min": 0, "max": 9, "num_train": 64, "num_val": 16}},
        "cluster": {"component_placement": {"actor": "0", "rollout": 1}},
        "actor": {"strategy": "ddp", "ppo_mini_batch_size": 4, "optim": {"lr": 1e-3}},
        "rollout": {"name": "openai", "n": 4,
                    "options": {"urls": [server.url], "dialect": "vllm", "retry_delay_s": 0.05, "idle_timeout_s": 5.0,
                                "weights_dir": str(folder / "weights")}},
        "reward": {"function": "served_reward:digits"},
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {"total_training_steps": STEPS, "save_freq": -1, "test_freq": -1, "val_before_train": False,
                    "logger": ["jsonl"], "default_local_dir": str(folder / "run")},
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    (folder / "served_reward.py").write_text(REWARD)
    done = subprocess.run(
        [sys.executable, "-m", "plugrl", "train", str(folder / "run.yaml")],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert list((folder / "weights").iterdir()) == [], "the weights that were handed over are gone with the run"
    return {row["step"]: row for row in rows if row["phase"] == "rl"}


def test_samples_of_a_served_model_are_the_policys_before_and_after_an_update(serve, tmp_path, dialect) -> None:
    load_plugins()
    server = serve(dialect, RealModel(), piece=2)
    options = {"urls": [server.url], "weights_dir": str(tmp_path)}
    backend = ServerRolloutBackend(MODEL, {"options": options})
    backend.initialize()
    policy = get_model(MODEL).eval()
    prompts, params = [[4, 5, 6], [7, 8]], SamplingParams(n=2, max_new_tokens=6)
    for version in (0, 1):
        for item in backend.generate(prompts, params, [1, 2]):
            ids = torch.tensor([[*prompts[item.prompt_index], *item.tokens]])
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids),
                      "response_mask": torch.ones(1, len(item.tokens))}  # fmt: skip
            with torch.no_grad():
                wanted = policy(forward_inputs=inputs)["logprobs"][0]
            torch.testing.assert_close(item.logprobs, wanted, atol=1e-4, rtol=1e-4)
            assert item.weight_version == version
        with torch.no_grad():
            for value in policy.parameters():
                value.mul_(1.3)
        named = ((policy.published_name(name), value) for name, value in policy.state_dict().items())
        backend.load_weights(((name, value) for name, value in named if name is not None), version + 1)
    backend.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_over_a_server_that_errs_and_restarts_has_the_numbers_of_one_that_does_not(serve, tmp_path) -> None:
    load_plugins()
    server = serve("vllm", RealModel(), piece=2)
    whole = train(tmp_path / "whole", server)
    assert list(whole) == [1, 2, 3] and server.model.loads >= STEPS
    for row in whole.values():
        assert row["training/rollout_probs_diff_max"] < 1e-3, "the server's log-probabilities are not the actor's"
    served = server.served
    server.served, server.faults = 0, ["half", None, "busy", "error", "mixed"]

    def restart(there: FakeServer, count: int) -> None:
        if count == served // 2:
            there.faults.insert(0, "restarts")

    server.on_sample = restart
    faulty = train(tmp_path / "faulty", server)
    assert server.served > served, "the faults did not happen"
    for step, row in whole.items():
        for key in ("critic/rewards/mean", "actor/pg_loss", "actor/grad_norm", "training/weight_version"):
            assert faulty[step][key] == pytest.approx(row[key], abs=1e-6, rel=1e-5), (step, key)
