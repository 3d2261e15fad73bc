"""A LoRA adapter trained by GRPO: the rollout gets merged weights, the reference is the actor without its adapter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from safetensors.torch import load_file

pytest.importorskip("peft")


@pytest.mark.slow
def test_an_adapter_learns_against_its_own_base_and_alone_is_saved(cli: Any) -> None:
    lora = {"rank": 4, "alpha": 32}
    path = cli.write(
        "adapter",
        peft={"r": lora["rank"], "lora_alpha": lora["alpha"], "method_type": "LORA"},
        actor={"use_kl_loss": True, "kl_loss_coef": 0.1, "optim": {"lr": 1e-2}},
        trainer={"total_training_steps": 2, "save_freq": 2, "test_freq": 2},
    )
    done = cli.run("train", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = cli.metrics("adapter")
    for step in (1, 2):
        # Sampled with merged weights, recomputed with the adapter beside them.
        assert steps[step]["training/rollout_probs_diff_max"] < 1e-4
    # Training starts at the reference, which the policy then leaves.
    assert 0 <= steps[1]["actor/kl_loss"] < steps[2]["actor/kl_loss"]
    folder = cli.folder / "adapter" / "checkpoints" / "last" / "pretrained_model"
    files = {file.name for file in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files
    assert not any(name.startswith("model") for name in files)
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == lora["rank"]
    stored = load_file(folder / "adapter_model.safetensors")
    assert all(name.startswith("base_model.model.") for name in stored)
    assert any(tensor.abs().max() > 0 for name, tensor in stored.items() if "lora_B" in name)
