"""Log-probabilities, entropies and values against the plain forward of transformers."""

from __future__ import annotations

import pytest
import torch

from plugrl.errors import ConfigError, UnsupportedCapability
from plugrl_models_hf import statistics
from plugrl_models_hf.policy import build_causal_lm, has_plain_head
from plugrl_models_hf.value import build_causal_lm_value


def plain(policy, batch, temperature=1.0):
    """Row by row without padding: log-probabilities and entropies of the response tokens."""
    log_probs, entropies = (torch.zeros(batch["response_mask"].shape) for _ in range(2))
    num_prompt = batch["input_ids"].shape[1] - batch["response_mask"].shape[1]
    for row, (ids, mask) in enumerate(zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)):
        length = int(batch["response_mask"][row].sum())
        if length == 0:
            continue
        tokens = ids[mask]
        with torch.no_grad():
            logits = policy.model(tokens[None]).logits[0].float() / temperature
        every = torch.log_softmax(logits, dim=-1)[-length - 1 : -1]
        log_probs[row, :length] = every.gather(1, tokens[-length:, None]).squeeze(1)
        entropies[row, :length] = -(every.exp() * every).sum(-1)
        assert num_prompt + length >= len(tokens)
    return log_probs, entropies


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_plain_forward(model_section, text_batch, family, temperature) -> None:
    policy = build_causal_lm(model_section(family)).eval()
    outputs = policy(forward_inputs=text_batch, temperature=temperature, compute_entropy=True)
    log_probs, entropies = plain(policy, text_batch, temperature)
    torch.testing.assert_close(outputs["logprobs"], log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs["entropy"], entropies, atol=1e-5, rtol=0)
    assert outputs["logprobs"].shape == (3, 4)
    assert not outputs["logprobs"][text_batch["response_mask"] == 0].any()


@pytest.mark.parametrize("family", ["gemma2", "granite", "gpt2"])
def test_families_with_other_heads_give_their_own_logits(model_section, text_batch, family) -> None:
    extra = {"granite": {"logits_scaling": 4.0}, "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2}}.get(family, {})
    section = model_section(family, config=extra, attn_implementation="eager" if family == "gemma2" else "sdpa")
    policy = build_causal_lm(section).eval()
    assert has_plain_head(policy.model) == (family == "gpt2")
    outputs = policy(forward_inputs=text_batch)
    torch.testing.assert_close(outputs["logprobs"], plain(policy, text_batch)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "granite"])
def test_sum_pi_squared_is_computed_on_request(model_section, text_batch, family) -> None:
    policy = build_causal_lm(model_section(family)).eval()
    outputs = policy(forward_inputs=text_batch, temperature=0.7, compute_sum_pi_squared=True)
    assert set(outputs) == {"logprobs", "sum_pi_squared"}
    row, mask = 1, text_batch["attention_mask"][1].bool()
    length = int(text_batch["response_mask"][row].sum())
    with torch.no_grad():
        logits = policy.model(text_batch["input_ids"][row][mask][None]).logits[0].float() / 0.7
    expected = torch.softmax(logits, dim=-1)[-length - 1 : -1].square().sum(-1)
    torch.testing.assert_close(outputs["sum_pi_squared"][row, :length], expected, atol=1e-5, rtol=0)
    assert not outputs["sum_pi_squared"][text_batch["response_mask"] == 0].any()


def test_extra_padding_columns_change_nothing(model_section, text_batch) -> None:
    policy = build_causal_lm(model_section()).eval()
    wide = {
        "input_ids": torch.nn.functional.pad(text_batch["input_ids"], (3, 2)),
        "attention_mask": torch.nn.functional.pad(text_batch["attention_mask"], (3, 2)),
        "response_mask": torch.nn.functional.pad(text_batch["response_mask"], (0, 2)),
    }
    outputs, wider = (policy(forward_inputs=batch)["logprobs"] for batch in (text_batch, wide))
    assert wider.shape == (3, 6)
    assert torch.equal(wider[:, :4], outputs) and not wider[:, 4:].any()


def test_gradients_are_finite_with_padding_and_filler_rows(model_section, text_batch) -> None:
    policy = build_causal_lm(model_section())
    outputs = policy(forward_inputs=text_batch, compute_entropy=True)
    (outputs["logprobs"].sum() + outputs["entropy"].sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in policy.parameters())


def test_a_batch_without_responses_has_a_graph_of_zeros(model_section, text_batch) -> None:
    policy = build_causal_lm(model_section())
    filler = {name: torch.zeros_like(tensor) for name, tensor in text_batch.items()}
    outputs = policy(forward_inputs=filler)
    outputs["logprobs"].sum().backward()
    assert not outputs["logprobs"].any()
    assert all(not parameter.grad.any() for parameter in policy.parameters())


def test_chunks_change_neither_values_nor_gradients(model_section, text_batch, monkeypatch) -> None:
    results = []
    for chunk, whole in ((1 << 24, 1 << 26), (36, 36)):
        monkeypatch.setattr(statistics, "CHUNK_ELEMENTS", chunk)
        monkeypatch.setattr(statistics, "WHOLE_ELEMENTS", whole)
        policy = build_causal_lm(model_section())
        outputs = policy(forward_inputs=text_batch, compute_entropy=True, compute_sum_pi_squared=True)
        (outputs["logprobs"].sum() + outputs["entropy"].sum() + outputs["sum_pi_squared"].sum()).backward()
        with torch.no_grad():
            again = policy(forward_inputs=text_batch)["logprobs"]
        torch.testing.assert_close(again, outputs["logprobs"], atol=1e-6, rtol=0)
        results.append([outputs["logprobs"], *(parameter.grad for parameter in policy.parameters())])
    for one, many in zip(*results, strict=True):
        torch.testing.assert_close(one, many, atol=1e-5, rtol=1e-5)


def test_sft_is_the_default_forward_at_temperature_one(model_section, text_batch) -> None:
    policy = build_causal_lm(model_section()).eval()
    sft = policy("sft", forward_inputs=text_batch, temperature=0.5)["logprobs"]
    assert torch.equal(sft, policy(forward_inputs=text_batch)["logprobs"])


def test_gradient_checkpointing_gives_the_same_gradients(model_section, text_batch) -> None:
    gradients = []
    for enabled in (False, True):
        policy = build_causal_lm(model_section(enable_gradient_checkpointing=enabled))
        blocks = [module for module in policy.modules() if type(module).__name__ in policy.wrap_units()]
        assert [block.gradient_checkpointing for block in blocks] == [enabled, enabled]
        policy(forward_inputs=text_batch)["logprobs"].sum().backward()
        gradients.append([parameter.grad for parameter in policy.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)


def test_declarations(model_section) -> None:
    policy = build_causal_lm(model_section())
    assert policy.wrap_units() == ("Qwen3DecoderLayer",)
    assert policy.capabilities() == {"logprobs", "entropy", "sft", "generate"}
    assert {"q_proj", "down_proj"} <= set(policy.lora_targets())
    with pytest.raises(UnsupportedCapability, match="causal_lm_value"):
        policy(forward_inputs={}, compute_values=True)


# --------------------------------------------------------------------------- values
def test_values_belong_to_the_state_before_the_token(model_section, text_batch) -> None:
    value = build_causal_lm_value(model_section(model_type="causal_lm_value")).eval()
    assert value.critic_parameters() == ("model.score.weight", "model.score.bias")
    assert not value(forward_inputs=text_batch)["values"].any()
    torch.nn.init.normal_(value.model.score.weight)
    values = value(forward_inputs=text_batch, temperature=0.3)["values"]
    assert values.shape == (3, 4) and not values[text_batch["response_mask"] == 0].any()
    # Row 1 without padding: tokens 1..7, of which the last three are the response.
    scores = value.model(text_batch["input_ids"][1:2, 1:8]).logits[0, :, 0]
    torch.testing.assert_close(values[1, :3], scores[3:6], atol=1e-5, rtol=0)
    changed = {**text_batch, "input_ids": text_batch["input_ids"].clone()}
    changed["input_ids"][1, 6] = 17 - changed["input_ids"][1, 6] % 2
    assert torch.equal(value(forward_inputs=changed)["values"][1, :2], values[1, :2])


def test_a_value_model_starts_from_a_causal_lm_and_keeps_its_head(model_section, text_batch, tmp_path) -> None:
    policy = build_causal_lm(model_section())
    names = {new: tensor for name, tensor in policy.state_dict().items() if (new := policy.published_name(name))}
    policy.save_pretrained(tmp_path / "policy", names)
    value = build_causal_lm_value({"path": str(tmp_path / "policy"), "precision": "fp32"})
    assert torch.equal(value.model.base_model.norm.weight, policy.model.base_model.norm.weight)
    assert not value.model.score.weight.any()
    torch.nn.init.normal_(value.model.score.weight)
    value.save_pretrained(tmp_path / "value", {value.published_name(n): t for n, t in value.state_dict().items()})
    again = build_causal_lm_value({"path": str(tmp_path / "value"), "precision": "fp32"})
    values = [item.eval()(forward_inputs=text_batch)["values"] for item in (value, again)]
    assert values[0].any() and torch.equal(*values)


def test_a_family_without_a_value_model_is_named(model_section) -> None:
    with pytest.raises(ConfigError, match="no value model"):
        build_causal_lm_value(model_section("granite"))
