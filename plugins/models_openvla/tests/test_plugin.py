"""The manifest, and what the tiny examples promise."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tiny import published

from plugrl.models import MODELS, get_model
from plugrl.registry import import_target
from plugrl_models_openvla.plugin import plugin


def test_manifest_and_schemas_import_nothing_heavy() -> None:
    code = (
        "import sys, plugrl_models_openvla.plugin, plugrl_models_openvla.config, plugrl_models_openvla.example;"
        "print([name for name in ('torch', 'transformers', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("entry", plugin.models, ids=lambda entry: entry.model_type)
def test_examples_are_built_by_their_names(entry) -> None:
    assert MODELS.entry(entry.model_type).meta["category"] == "embodied"
    policy = get_model(import_target(entry.example)(), "fp32")
    twin = get_model(import_target(entry.example)(), "fp32")
    assert {"logprobs", "actions", "values", "sft"} <= policy.capabilities()
    state = published(policy)
    assert all(torch.equal(tensor, state[name]) for name, tensor in published(twin).items())
