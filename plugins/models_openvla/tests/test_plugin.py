"""The manifest, and what the tiny examples promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tiny import published

from plugrl.models import MODELS, get_model
from plugrl.registry import import_target
from plugrl_models_openvla.oft_config import OpenVLAOFTConfig
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


# --------------------------------------------------------------------- the README
README = Path(__file__).parents[1] / "README.md"
SHARED = {"model_type", "path", "precision", "trust_remote_code", "enable_gradient_checkpointing", "seed", "lora"}


def test_every_key_is_documented() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S.*?) \|", README.read_text(), re.MULTILINE)
    written = [name for name, _ in rows if name not in ("openvla", "openvla_oft")]
    assert set(written) == {*OpenVLAOFTConfig.model_fields} - SHARED | {"path"} and len(written) == len(set(written))


def test_the_model_of_the_readme_acts() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    policy = get_model(yaml.safe_load(text)["model"], "fp32").eval()
    obs = {"main_images": torch.zeros(2, 48, 48, 3, dtype=torch.uint8),
           "task_descriptions": ["Push the red block to the goal", "pick up the ball"]}  # fmt: skip
    actions, _ = policy.predict_action_batch(obs)
    assert actions.shape == (2, 1, 4)
