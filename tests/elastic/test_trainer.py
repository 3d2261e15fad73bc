"""A live trainer that is scaled: the same state to the bit, the same losses, and nothing lost when it fails."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

import torch

from plugrl.config import load_config
from plugrl.engines.base import BatchOptions
from plugrl.engines.state import RANDOM, add_checksums
from plugrl.errors import PeerLostError, ScaleError, WorkerDied
from plugrl.runners.components import TRAINING_WORKER, engine_spec
from plugrl.runtime import WorkerGroup
from plugrl.workers.groups import TrainingGroup
from plugrl.workers.objectives import PolicyObjective
from plugrl.workers.scaling import scale_trainer
from plugrl_models_hf.example import causal_lm

ROWS, WIDTH, RESPONSE = 8, 12, 6
TIMEOUT_S = 120.0


class Job:
    """A trainer and its data, of which step s always has the same batch."""

    def __init__(self, session: Any, folder: Path, name: str, ranks: int, strategy: str = "fsdp2") -> None:
        self.session = session
        actor = {"strategy": strategy, "ppo_mini_batch_size": ROWS, "optim": {"lr": 1e-2, "lr_warmup_steps": 3}}
        data = {"source": "arithmetic", "train_batch_size": ROWS, "max_response_length": RESPONSE}
        content = {"model": causal_lm(), "actor": actor, "data": data, "reward": {"name": "exact_match"}}
        (folder / "run.yaml").write_text(json.dumps(content))
        self.config = load_config(folder / "run.yaml")
        self.trainer = TrainingGroup(self.launch(name, range(ranks)), TIMEOUT_S)
        self.trainer.group.wait_ready(TIMEOUT_S)

    def launch(self, name: str, devices: Any) -> WorkerGroup:
        spec = engine_spec(self.config, "actor", 10, None, False)
        return WorkerGroup(self.session, TRAINING_WORKER, name=name, devices=tuple(devices), args=(spec,))

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(number)
        batch = {
            "input_ids": torch.randint(0, 15, (ROWS, WIDTH), generator=generator),
            "attention_mask": torch.ones(ROWS, WIDTH, dtype=torch.long),
            "response_mask": torch.ones(ROWS, RESPONSE),
            "advantages": torch.randn(ROWS, RESPONSE, generator=generator),
        }
        objective = PolicyObjective(config=self.config.actor, max_response_length=RESPONSE)
        return self.trainer.train([batch], objective, BatchOptions(micro_batch_size=2))["grad_norm"]

    def state(self) -> Any:
        """Sums over weights, moments and all (but the random states of single ranks), and the plain values."""
        offers = self.trainer.group.execute("offer_state").wait(TIMEOUT_S)
        sums = add_checksums(offer.sums for offer in offers)
        return {key: value for key, value in sums.items() if not key.startswith(RANDOM)}, offers[0].values

    def scale(self, ranks: int, **options: Any) -> Any:
        return scale_trainer(self.trainer, range(ranks), timeout=TIMEOUT_S, **options)

    def generations(self) -> list[int]:
        return [group.generation for group in self.session.open_groups() if group.name == self.trainer.group.name]


@pytest.fixture
def job(ray_session, tmp_path):
    made: list[Job] = []

    def make(*args: Any, **options: Any) -> Job:
        made.append(Job(ray_session, tmp_path, *args, **options))
        return made[-1]

    yield make
    for item in made:
        item.trainer.close()
    assert not ray_session.open_groups()


@pytest.mark.slow
def test_one_two_one_keeps_the_state_to_the_bit_and_a_fault_leaves_everything_as_it_was(job):
    scaled = job("scaled", 1)
    norms = [scaled.step(number) for number in (1, 2)]
    before = scaled.state()
    assert any(key.startswith("optimizer/exp_avg_sq/") for key in before[0])

    def kill_a_new_rank(point: str) -> None:
        if point == "scale.transfer":
            os.kill(scaled.session.open_groups()[-1].known_processes()[1].pid, signal.SIGKILL)

    began = time.monotonic()
    with pytest.raises(ScaleError) as caught:
        scaled.scale(2, fault=kill_a_new_rank)
    assert caught.value.rolled_back and caught.value.step == "transfer", caught.value
    assert isinstance(caught.value.cause, WorkerDied | PeerLostError) and time.monotonic() - began < 60
    assert scaled.generations() == [0]
    assert scaled.state() == before, "the attempt has changed the state"

    for ranks in (2, 1):
        before = scaled.state()
        scaled.scale(ranks)
        assert scaled.trainer.group.size == ranks
        assert scaled.state() == before, "the new workers have another state"
        norms += [scaled.step(len(norms) + 1), scaled.step(len(norms) + 2)]
    fixed = job("fixed", 1)
    expected = [fixed.step(number) for number in range(1, 7)]
    assert norms == pytest.approx(expected, rel=1e-5), "the curve is not that of a run on one rank"


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sizes"), [("ddp", (2, 1, 3)), ("fsdp2", (2, 3, 2)), ("fsdp1", (2, 1))])
def test_any_sizes_and_layouts(job, strategy, sizes):
    scaled = job("scaled", sizes[0], strategy)
    fixed = job("fixed", sizes[0], strategy)
    norms, expected = [], []
    for ranks in (*sizes[1:], sizes[0]):
        number = len(norms) + 1
        norms.append(scaled.step(number))
        expected.append(fixed.step(number))
        before = scaled.state()
        scaled.scale(ranks)
        assert scaled.state() == before
    assert norms == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["create", "quiesce", "transfer", "commit"])
def test_every_fault_before_the_commit_rolls_back(job, point):
    def fault(at: str) -> None:
        if at == f"scale.{point}":
            raise OSError("no room")

    scaled = job("scaled", 1)
    scaled.step(1)
    before = scaled.state()
    with pytest.raises(ScaleError, match=f"step {point}, nothing has changed: OSError: no room"):
        scaled.scale(2, fault=fault)
    assert scaled.generations() == [0]
    assert scaled.state() == before
    scaled.scale(2)
    assert scaled.state() == before
