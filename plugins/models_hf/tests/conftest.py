"""Tiny models and batches for the tests of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def model_section() -> Callable[..., dict[str, Any]]:
    """A function that gives a `model:` section of a tiny model with random weights."""

    def section(family: str = "qwen3", **keys: Any) -> dict[str, Any]:
        shape = {**SHAPE, "model_type": family, **keys.pop("config", {})}
        return {
            "model_type": "causal_lm",
            "config": shape,
            "tokenizer": {"type": "characters", "alphabet": ALPHABET},
            "precision": "fp32",
            **keys,
        }

    return section


@pytest.fixture
def text_batch() -> dict[str, torch.Tensor]:
    """Three rows in the text layout, P = 5 and T = 4: left and right padding, and one row that is all padding."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 18, (3, 9), generator=generator)
    attention = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1, 0], [0] * 9])
    response = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    return {"input_ids": ids * attention, "attention_mask": attention, "response_mask": response}
