"""OpenVLA-OFT under adapters and sharding: the first ratio is 1, and only what is to be trained changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oft_ranks
import pytest
import torch
from oft_tiny import observations, policy, section

from plugrl.errors import ConfigError
from plugrl.testing.ranks import RankPool
from plugrl_models_openvla.oft_policy import build_openvla_oft

LORA = {"rank": 2, "init": "random"}
CAMERAS = {"num_images_in_input": 2, "use_proprio": True, "use_film": True}


@pytest.mark.parametrize("keys", [CAMERAS, {"lora": LORA, "use_proprio": True}], ids=["whole", "adapter"])
def test_the_first_ratio_is_one_on_two_ranks(ranks: RankPool, keys: dict[str, Any]) -> None:
    alone = ranks.run(oft_ranks.first_update, "ddp", keys, world=1)[0]
    first, second = ranks.run(oft_ranks.first_update, "fsdp2", keys, world=2)
    for found in (first, second):
        assert found["ratio"] < 1e-5 and found["values"] < 1e-5, found
        assert found["change"] > 1e-4, "the step changed nothing"
        assert found["norm"] == pytest.approx(alone["norm"], rel=1e-4)


def test_an_adapter_is_trained_with_all_heads_on_frozen_weights(tmp_path: Path) -> None:
    keys = {"lora": LORA, "use_proprio": True, "action_head": "l1"}
    found, plain = policy(**keys), policy(use_proprio=True, action_head="l1")
    trained = {name for name, item in found.named_parameters() if item.requires_grad}
    heads = {found.published_name(name) for name in trained if ".lora_" not in name}
    assert {name.split(".")[2] for name in heads} == {"action_head", "proprio_projector", "value_head"}
    obs = observations()
    with found.adapter_disabled():
        torch.testing.assert_close(found.predict_action_batch(obs)[0], plain.predict_action_batch(obs)[0])
    acted = found.predict_action_batch(obs)[0]
    assert not torch.allclose(acted, plain.predict_action_batch(obs)[0])

    state = {found.published_name(name): tensor for name, tensor in found.state_dict().items()}
    found.save_pretrained(tmp_path, {name: item for name, item in state.items() if name and found.is_saved(name)})
    loaded = {"rank": 2, "path": str(tmp_path)}
    torch.testing.assert_close(policy(**keys | {"lora": loaded}).predict_action_batch(obs)[0], acted)
    merged = policy(**keys | {"lora": {**loaded, "enable": "merge"}})
    assert merged.adapter_config() is None
    torch.testing.assert_close(merged.predict_action_batch(obs)[0], acted, atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_changes_no_number() -> None:
    slopes = []
    for keys in ({}, {"enable_gradient_checkpointing": True}):
        found = policy(**CAMERAS, **keys).train()
        rows = found.sft_inputs(observations(cameras=2), torch.ones(3, 3, 2))
        found(forward_type="sft", forward_inputs=rows)["losses"].sum().backward()
        slopes.append([item.grad for item in found.parameters() if item.grad is not None])
    torch.testing.assert_close(*slopes)


def test_half_precision_acts_and_recomputes_alike() -> None:
    found = build_openvla_oft(section(**CAMERAS), torch.bfloat16)
    _, result = found.predict_action_batch(observations(cameras=2), temperature=1.2)
    assert result["prev_logprobs"].dtype == result["prev_values"].dtype == torch.float32
    again = found(forward_inputs=result["forward_inputs"], temperature=1.2)["logprobs"]
    torch.testing.assert_close(again, result["prev_logprobs"])


def test_an_adapter_on_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="nope"):
        policy(lora={"rank": 2, "target_modules": ["nope"]})


def test_the_units_that_are_sharded_are_those_of_the_model() -> None:
    found = policy(**CAMERAS, action_head="l1")
    classes = {type(module).__name__ for module in found.modules()}
    assert set(found.wrap_units()) <= classes
    assert {"L1ActionHead", "ProprioProjector", "Film", "ValueHead", "LlamaDecoderLayer"} <= set(found.wrap_units())
    assert found.critic_parameters() and all("value_head" in name for name in found.critic_parameters())
