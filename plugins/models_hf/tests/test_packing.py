"""Packed rows give what padded rows give, and fewer tokens go through the model."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from plugrl_models_hf.layout import TextLayout
from plugrl_models_hf.packing import ATTENTION, PackedLayout, packed
from plugrl_models_hf.policy import build_causal_lm
from plugrl_models_hf.value import build_causal_lm_value

NUM_PROMPT, NUM_RESPONSE = 6, 5


def batch_of(rows: list[tuple[int, int, int]]) -> dict[str, torch.Tensor]:
    """Rows of (prompt, its length, length of the response), padded; the prompt is a number that stands for its text."""
    ids = torch.zeros(len(rows), NUM_PROMPT + NUM_RESPONSE, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (prompt, prompt_length, length) in enumerate(rows):
        text = torch.Generator().manual_seed(prompt)
        ids[row, NUM_PROMPT - prompt_length : NUM_PROMPT] = torch.randint(3, 18, (prompt_length,), generator=text)
        answer = torch.Generator().manual_seed(100 + row)
        ids[row, NUM_PROMPT : NUM_PROMPT + length] = torch.randint(3, 18, (length,), generator=answer)
        mask[row, NUM_PROMPT - prompt_length : NUM_PROMPT + length] = 1
    return {"input_ids": ids, "attention_mask": mask, "response_mask": mask[:, NUM_PROMPT:]}


BATCHES = {
    "groups": [(1, 4, 5), (1, 4, 2), (1, 4, 3), (2, 6, 1), (2, 6, 4)],
    "equal lengths": [(1, 6, 5)] * 3 + [(2, 6, 5)],
    "one token each": [(1, 6, 1), (1, 6, 1), (2, 3, 1)],
    "a group taken apart": [(1, 4, 5), (2, 5, 2), (1, 4, 3)],
    "another prompt of the same length": [(1, 4, 2), (3, 4, 2)],
    "filler": [(1, 4, 2), (1, 4, 3), (0, 0, 0), (0, 0, 0)],
    "an empty response": [(1, 4, 0), (1, 4, 3)],
}


def outputs_and_gradients(policy, batch, **options):
    policy.zero_grad()
    outputs = policy(forward_inputs=batch, **options)
    sum((index + 1) * output.sum() for index, output in enumerate(outputs.values())).backward()
    return list(outputs.values()) + [parameter.grad.clone() for parameter in policy.parameters()]


@pytest.fixture(autouse=True)
def _pack_everything(monkeypatch) -> None:
    monkeypatch.setattr("plugrl_models_hf.packing.WORTH_IT", 1.0)


@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_packed_rows_give_the_log_probs_and_gradients_of_padded_rows(model_section, family, rows) -> None:
    extra = {"n_embd": 32, "n_head": 4, "n_layer": 2} if family == "gpt2" else {}
    plain, packing = (
        build_causal_lm(model_section(family, config=extra, use_remove_padding=remove)).eval()
        for remove in (False, True)
    )
    assert packing.model.config._attn_implementation == ATTENTION
    assert plain.model.config._attn_implementation == "sdpa"
    batch, options = batch_of(rows), {"temperature": 0.7, "compute_entropy": True}
    for wanted, got in zip(
        *(outputs_and_gradients(policy, batch, **options) for policy in (plain, packing)), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_packed_rows_give_the_values_of_padded_rows(model_section, rows) -> None:
    plain, packing = (
        build_causal_lm_value(model_section(model_type="causal_lm_value", use_remove_padding=remove))
        for remove in (False, True)
    )
    assert packing.model.config._attn_implementation == ATTENTION
    for policy in (plain, packing):
        torch.nn.init.constant_(policy.model.score.weight, 0.1)
    batch = batch_of(rows)
    for wanted, got in zip(*(outputs_and_gradients(policy, batch) for policy in (plain, packing)), strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


def test_each_token_that_counts_goes_through_the_model_once() -> None:
    layout = packed(TextLayout.trim(batch_of(BATCHES["groups"])))
    assert isinstance(layout, PackedLayout)
    prompts, responses = 4 + 6, (4 + 1 + 2) + (0 + 3)  # The last token of a response predicts nothing.
    assert layout.sequence.shape == (prompts + responses,)
    assert layout.packing.owner.tolist() == [0, 0, 0, 1, 1]


def test_rows_without_padding_or_shared_prompts_stay_as_they_are(monkeypatch) -> None:
    monkeypatch.setattr("plugrl_models_hf.packing.WORTH_IT", 0.85)
    layout = TextLayout.trim(batch_of([(prompt, 6, 5) for prompt in range(1, 4)]))
    assert packed(layout) is layout


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("qwen3", {"attn_implementation": "eager"}),
        ("qwen3", {"use_remove_padding": False}),
        ("mistral", {"config": {"sliding_window": 4}}),
        ("gemma3_text", {}),
    ],
)
def test_models_whose_attention_is_not_plain_are_left_alone(model_section, family, keys) -> None:
    policy = build_causal_lm(model_section(family, **keys))
    assert policy.model.config._attn_implementation == keys.get("attn_implementation", "sdpa")


def ignores_the_packing(module, query, key, value, mask, *args, packing=None, **keys):
    return sdpa_attention_forward(module, query, key, value, None, *args, is_causal=True)


def cannot(module, *args, packing=None, **keys):
    if packing is not None:
        raise RuntimeError("shapes do not fit")
    return sdpa_attention_forward(module, *args, **keys)


@pytest.mark.parametrize("attention", [ignores_the_packing, cannot])
def test_a_model_that_gives_other_numbers_without_padding_is_trained_with_it(
    model_section, attention, monkeypatch, caplog
) -> None:
    monkeypatch.setitem(AttentionInterface._global_mapping, ATTENTION, attention)
    policy = build_causal_lm(model_section())
    assert policy.model.config._attn_implementation == "sdpa"
    assert "Qwen3ForCausalLM does not give the same numbers without padding" in caplog.text
    assert policy(forward_inputs=batch_of(BATCHES["groups"]))["logprobs"].shape == (5, NUM_RESPONSE)


def test_a_saved_model_does_not_name_the_attention_of_this_package(model_section, tmp_path) -> None:
    policy = build_causal_lm(model_section())
    policy.model.save_pretrained(tmp_path)
    assert ATTENTION not in (tmp_path / "config.json").read_text()
