"""Prompts: where they come from, in which order they are taken, how they become tensors. Importing this is light."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugrl.data.records import PromptRecord, Splits
from plugrl.data.registry import DATASETS, load_dataset, register_dataset

if TYPE_CHECKING:
    from plugrl.data.gsm8k import convert_gsm8k
    from plugrl.data.loading import load_records
    from plugrl.data.packing import pack_sequences
    from plugrl.data.run_plan import RunPlan, plan_run
    from plugrl.data.sampler import PromptSampler
    from plugrl.data.tokenization import Tokenized, tokenize_examples, tokenize_prompts

_MODULES = {
    "PromptSampler": "sampler",
    "RunPlan": "run_plan",
    "Tokenized": "tokenization",
    "convert_gsm8k": "gsm8k",
    "load_records": "loading",
    "pack_sequences": "packing",
    "plan_run": "run_plan",
    "tokenize_examples": "tokenization",
    "tokenize_prompts": "tokenization",
}

__all__ = [
    "DATASETS",
    "PromptRecord",
    "PromptSampler",
    "RunPlan",
    "Splits",
    "Tokenized",
    "convert_gsm8k",
    "load_dataset",
    "load_records",
    "pack_sequences",
    "plan_run",
    "register_dataset",
    "tokenize_examples",
    "tokenize_prompts",
]


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the exported names, imported or not."""
    return sorted(__all__)
