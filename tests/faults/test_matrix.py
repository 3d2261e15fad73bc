"""Faults of a component at a phase of a step: a typed error or a recovery in time, and nothing left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parent))
from trial import LIMIT_S, Cell, Outcome, Trial

from plugrl import errors
from plugrl.config import load_config

CELLS = [
    pytest.param(Cell("actor", "full", "sync"), marks=pytest.mark.slow),
    pytest.param(Cell("rollout", "memory", "sample"), marks=pytest.mark.slow),
    Cell("actor", "freeze", "update"),
]
CONFIG = """
model:
  model_type: causal_lm
  config:
    model_type: qwen3
    hidden_size: 32
    intermediate_size: 64
    num_hidden_layers: 2
    num_attention_heads: 2
    num_key_value_heads: 1
    head_dim: 16
    max_position_embeddings: 32
    tie_word_embeddings: true
  tokenizer: {type: characters, alphabet: "0123456789+-="}
  precision: fp32
data: {source: arithmetic, train_batch_size: 4, max_prompt_length: 8, max_response_length: 4}
reward: {name: exact_match}
actor: {strategy: fsdp2, ppo_mini_batch_size: 4, optim: {lr: 1.0e-3}}
"""


@pytest.fixture(scope="module")
def trial(ray_session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The components, launched once and again after each fault that ends them."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "run.yaml").write_text(CONFIG)
    trial = Trial(ray_session, load_config(folder / "run.yaml"), folder)
    yield trial
    assert trial.close() == []


def check(cell: Cell, outcome: Outcome) -> None:
    """Fail unless the outcome is a typed error of ours, or no error at all, in time and without leftovers."""
    assert outcome.seconds < LIMIT_S, (cell, outcome)
    assert outcome.left == [], (cell, outcome)
    if not outcome.error:
        assert cell.fault == "full", f"{cell} went unnoticed"
        return
    assert issubclass(getattr(errors, outcome.error, Exception), errors.PlugRLError), (cell, outcome)
    # Of a transfer, the end that hears of the failure may be heard before the one that failed; it says what that was.
    assert f"f-{cell.component}" in outcome.text or cell.phase == "sync", (cell, outcome)
    expected = {"kill": {"WorkerDied"}, "freeze": {"WorkerFrozen"}}
    assert outcome.error in expected.get(cell.fault, {outcome.error}), (cell, outcome)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.component}-{cell.fault}-{cell.phase}")
def test_a_fault_is_a_typed_error_in_time(trial: Trial, cell: Cell) -> None:
    check(cell, trial.run(cell))
