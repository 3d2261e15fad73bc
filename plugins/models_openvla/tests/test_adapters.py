"""LoRA on OpenVLA: which layers, what is trained, and what is saved and merged."""

from __future__ import annotations

import pytest
import torch
from tiny import draws, make_policy, observe, published

from plugrl.errors import ConfigError
from plugrl_models_openvla.example import write_folder
from plugrl_models_openvla.policy import build_openvla

LORA = {"rank": 4, "init": "random"}


def test_the_first_ratio_is_one_with_an_adapter() -> None:
    policy = make_policy(lora=LORA, num_action_chunks=2)
    _, result = draws(policy, observe(), 0.7, 6, 0.8)
    found = policy(forward_inputs=result["forward_inputs"], temperature=0.7, top_k=6, top_p=0.8)["logprobs"]
    torch.testing.assert_close((found - result["prev_logprobs"]).exp(), torch.ones(6, 2, 3), atol=1e-5, rtol=0)
    with torch.no_grad(), policy.adapter_disabled():
        plain = policy(forward_inputs=result["forward_inputs"], temperature=0.7)["logprobs"]
    assert (plain - found).abs().max() > 1e-2


def test_adapters_stand_where_something_is_computed() -> None:
    policy = make_policy(lora=LORA)
    adapted = {name.split(".lora_A.")[0] for name, _ in policy.named_parameters() if ".lora_A." in name}
    assert {name.rpartition(".")[2] for name in adapted} == {
        "qkv", "proj", "fc1", "fc2", "fc3", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        "lm_head",
    }  # fmt: skip
    assert len(adapted) == 2 * 2 * 4 + 3 + 2 * 7 + 1
    assert not [name for name in adapted if ".blocks.2." in name or "attn_pool" in name or "patch_embed" in name]
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in name or ".value_head." in name for name in trained)
    assert len([name for name in trained if ".value_head." in name]) == 5
    wanted = make_policy(lora={**LORA, "target_modules": ["q_proj", "v_proj"]})
    assert len([name for name, _ in wanted.named_parameters() if ".lora_A." in name]) == 4
    with pytest.raises(ConfigError, match="nope"):
        make_policy(lora={**LORA, "target_modules": ["nope"]})


def test_an_adapter_is_saved_loaded_and_merged(tmp_path) -> None:
    section = write_folder(tmp_path / "base")
    policy = build_openvla({**section, "lora": LORA}).eval()
    with torch.no_grad():
        policy.model.value_head.modules_to_save["default"].mlp[0].bias += 1.0
    actions, result = policy.predict_action_batch(observe(), "eval")
    saved = {name: tensor for name, tensor in published(policy).items() if policy.is_saved(name)}
    assert all(name.startswith("base_model.model.") for name in saved)
    policy.save_pretrained(tmp_path / "adapter", saved)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    ways = {
        "on its base": {**section, "lora": {"path": str(tmp_path / "adapter")}},
        "by its own path": {**section, "path": str(tmp_path / "adapter")},
        "merged": {**section, "lora": {"path": str(tmp_path / "adapter"), "enable": "merge"}},
    }
    for name, way in ways.items():
        again = build_openvla(way).eval()
        assert (again.adapter_config() is None) == (name == "merged")
        same, found = again.predict_action_batch(observe(), "eval")
        torch.testing.assert_close(same, actions, atol=1e-5, rtol=0, msg=name)
        for key in ("prev_logprobs", "prev_values"):
            torch.testing.assert_close(found[key], result[key], atol=1e-4, rtol=0, msg=f"{name}: {key}")
    merged = dict(policy.merged_tensors(published(policy).items()))
    plain = build_openvla(section).eval()
    plain.load_published(merged.items())
    torch.testing.assert_close(plain.predict_action_batch(observe(), "eval")[1]["prev_logprobs"],
                               result["prev_logprobs"], atol=1e-4, rtol=0)  # fmt: skip


def test_a_value_head_that_the_base_lacks_is_trained_with_the_adapter(tmp_path) -> None:
    section = write_folder(tmp_path / "base", add_value_head=False)
    policy = build_openvla({**section, "add_value_head": True, "lora": LORA})
    names = [name for name in published(policy) if "value_head" in name]
    assert len([name for name in names if policy.is_saved(name)]) == 5
