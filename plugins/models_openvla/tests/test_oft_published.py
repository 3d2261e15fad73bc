"""OpenVLA-OFT beside the published implementations: the same weights, inputs and answers."""

from __future__ import annotations

import pytest
import torch
from oft_tiny import published

from plugrl_models_openvla.sampling import Sampling

WITHIN = {"atol": 5e-4, "rtol": 0.0}
EMPTY = 29871


@pytest.fixture(scope="module")
def discrete():
    return published("oft_discrete", add_value_head=True, value_type="chunk_level")


@torch.no_grad()
def test_the_discrete_head_acts_as_published(discrete) -> None:
    policy, expected = discrete
    inputs = {"input_ids": expected["input_ids"], "attention_mask": expected["attention_mask"],
              "pixels": expected["pixel_values"]}  # fmt: skip
    model = policy.model
    sequences = model.sequences(inputs["input_ids"], inputs["attention_mask"], inputs["pixels"])
    assert torch.equal(sequences.mask.long(), expected["mm_attention_mask"])
    assert torch.equal(sequences.positions, expected["mm_position_ids"])
    torch.testing.assert_close(sequences.embeddings, expected["mm_inputs_embeds"], **WITHIN)
    hidden, seen = model.states_of_all(sequences), sequences.mask
    torch.testing.assert_close(hidden[seen], expected["last_hidden_state"][seen], **WITHIN)

    states = policy._action_states(inputs)
    torch.testing.assert_close(states, expected["action_hidden_states"], **WITHIN)
    torch.testing.assert_close(states[:, 0], expected["value_hidden_state"], **WITHIN)
    logits, tokens = model.logits(states), policy.parts.tokens
    torch.testing.assert_close(logits[..., tokens.first : tokens.limit], expected["action_logits_bins"], **WITHIN)
    torch.testing.assert_close(logits.logsumexp(-1), expected["action_logits_logsumexp_full"], **WITHIN)
    torch.testing.assert_close(logits[1, [0, 1, 55]], expected["action_logits_full_row1"], **WITHIN)

    ids, log_probs, values = policy._act(inputs, Sampling(temperature=0), None)
    assert torch.equal(ids, expected["greedy_tokens"])
    torch.testing.assert_close(log_probs.flatten(1), expected["greedy_logprobs"], **WITHIN)
    torch.testing.assert_close(values, expected["values"], **WITHIN)
    torch.testing.assert_close(tokens.decode(ids), expected["greedy_normalized_actions"], **WITHIN)
    torch.testing.assert_close(policy.actions_of(ids), expected["greedy_actions"], **WITHIN)
    table = expected["table_tokens"][:, None].expand(-1, 7)
    torch.testing.assert_close(tokens.decode(table[:, 0]), expected["table_normalized"], atol=1e-6, rtol=0)
    torch.testing.assert_close(policy.actions_of(table), expected["table_actions"], atol=1e-6, rtol=0)


@torch.no_grad()
def test_given_tokens_are_scored_as_published(discrete) -> None:
    policy, expected = discrete
    inputs = {"input_ids": expected["input_ids"], "attention_mask": expected["attention_mask"],
              "pixels": expected["pixel_values"], "action_tokens": expected["given_tokens"]}  # fmt: skip
    for temperature, name in ((1.0, "t1"), (1.6, "t1p6")):
        found = policy(forward_inputs=inputs, temperature=temperature, compute_entropy=True, compute_values=True)
        torch.testing.assert_close(found["logprobs"].flatten(1), expected[f"given_logprobs_{name}"], **WITHIN)
        torch.testing.assert_close(found["entropy"].flatten(1), expected[f"given_entropy_{name}"], **WITHIN)
        torch.testing.assert_close(found["values"], expected["given_values"], **WITHIN)


@torch.no_grad()
def test_the_l1_head_acts_as_published_on_two_cameras_with_proprioception() -> None:
    policy, expected = published("oft_l1", action_head="l1", num_images_in_input=2, use_proprio=True)
    for example in ("ex0", "ex1", "ex2"):
        values = {key.removeprefix(f"{example}."): value for key, value in expected.items() if key.startswith(example)}
        ids = values["prompt_input_ids"]
        if ids[0, -1] != EMPTY:
            ids = torch.cat([ids, torch.tensor([[EMPTY]])], dim=1)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids),
                  "pixels": expected["pixel_values"][values["pixel_index"]]}  # fmt: skip
        if "raw_proprio" in values:
            inputs["proprio"] = policy.proprio.normalise(values["raw_proprio"][None])
            torch.testing.assert_close(inputs["proprio"][0], values["normalized_proprio"], atol=1e-6, rtol=0)
            token = policy.model.proprio_projector(inputs["proprio"])[0]
            torch.testing.assert_close(token, values["proprio_token"], **WITHIN)
        else:  # the last example was computed without the token
            del policy.model.proprio_projector
        sequences = policy.model.sequences(ids, inputs["attention_mask"], inputs["pixels"], inputs.get("proprio"))
        torch.testing.assert_close(sequences.embeddings, values["mm_inputs_embeds"], **WITHIN)
        torch.testing.assert_close(policy._action_states(inputs), values["action_hidden_states"], **WITHIN)
        found = policy(forward_inputs=inputs)["actions"]
        torch.testing.assert_close(found[0], values["normalized_actions"], **WITHIN)
        torch.testing.assert_close(policy.parts.statistics.unnormalise(found)[0], values["actions"], **WITHIN)


@torch.no_grad()
def test_rows_alone_are_what_they_are_in_a_padded_batch(discrete) -> None:
    policy, expected = discrete
    together = policy._action_states({**_inputs(expected, slice(None))})
    for row in range(3):
        alone = policy._action_states(_inputs(expected, slice(row, row + 1)))
        torch.testing.assert_close(alone, together[row : row + 1], **WITHIN)
    longer = _inputs(expected, slice(None))
    pads = torch.full((3, 4), policy.parts.folder.config.pad_token_id)
    longer["input_ids"] = torch.cat([longer["input_ids"][:, :1], pads, longer["input_ids"][:, 1:]], dim=1)
    mask = longer["attention_mask"]
    longer["attention_mask"] = torch.cat([mask[:, :1], torch.zeros_like(pads), mask[:, 1:]], dim=1)
    torch.testing.assert_close(policy._action_states(longer), together)


def _inputs(expected: dict[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    found = {"input_ids": "input_ids", "attention_mask": "attention_mask", "pixels": "pixel_values"}
    return {name: expected[key][rows] for name, key in found.items()}
