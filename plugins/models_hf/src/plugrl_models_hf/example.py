"""Tiny models with random weights, for the conformance kit. Imports nothing heavy."""

from __future__ import annotations

from typing import Any


def causal_lm() -> dict[str, Any]:
    """Return the configuration of a language model with two layers, tied embeddings and a tokenizer of characters."""
    shape = {
        "model_type": "qwen3",
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
    tokenizer = {"type": "characters", "alphabet": "0123456789+-=* "}
    return {"model_type": "causal_lm", "config": shape, "tokenizer": tokenizer, "precision": "fp32", "seed": 0}


def causal_lm_value() -> dict[str, Any]:
    """Return the same backbone with a head for values."""
    return {**causal_lm(), "model_type": "causal_lm_value"}
