"""Tiny rollout backends for the tests of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from plugrl.plugins import load_plugins
from plugrl.rollouts.base import Completion
from plugrl_rollout_hf import fused
from plugrl_rollout_hf.backend import HFRolloutBackend

ALPHABET = "0123456789+-=* "
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
}
DECODERS = ("fused", "shared", "transformers")
PROMPTS = [[4, 5, 6], [7, 8, 9, 10, 11], [4, 5, 6], [3], [12, 13]]


@pytest.fixture(autouse=True, scope="session")
def _session() -> None:
    torch.set_num_threads(1)
    load_plugins()


def section(family: str = "qwen3", seed: int = 0, **config: Any) -> dict[str, Any]:
    """A `model:` section of a tiny model with random weights."""
    return {
        "model_type": "causal_lm",
        "config": {**SHAPE, "model_type": family, **config},
        "tokenizer": {"type": "characters", "alphabet": ALPHABET},
        "precision": "fp32",
        "seed": seed,
    }


@pytest.fixture
def start(monkeypatch) -> Callable[..., HFRolloutBackend]:
    """A function that starts a backend; the decoder "shared" is the fused one that treats every prompt as long."""

    def build(decoder: str = "auto", *, model: dict[str, Any] | None = None, **rollout: Any) -> HFRolloutBackend:
        monkeypatch.setattr(fused, "SHORT_PROMPT", 0 if decoder == "shared" else 32)
        name = "fused" if decoder == "shared" else decoder
        backend = HFRolloutBackend(model or section(), {"options": {"decoder": name}, **rollout})
        backend.initialize()
        return backend

    return build


@pytest.fixture(params=DECODERS)
def backend(request, start) -> HFRolloutBackend:
    """A backend with each decoder in turn."""
    return start(request.param)


@pytest.fixture
def same() -> Callable[..., None]:
    """A function that asserts that two lists of completions are equal."""

    def check(first: list[Completion], second: list[Completion], atol: float = 1e-5) -> None:
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert (one.prompt_index, one.sample_index) == (other.prompt_index, other.sample_index)
            assert tuple(one.tokens) == tuple(other.tokens)
            assert one.finish_reason == other.finish_reason
            torch.testing.assert_close(one.logprobs, other.logprobs, atol=atol, rtol=0)

    return check
