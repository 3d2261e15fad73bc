"""The backend against transformers, and its promises: seeds, stops, sharing, weights."""

from __future__ import annotations

import pytest
import torch

from plugrl.errors import ConfigError, WeightSyncError
from plugrl.rollouts.base import SamplingParams
from plugrl_rollout_hf import backend as backend_module
from plugrl_rollout_hf.decoder import HFDecoder
from plugrl_rollout_hf.fused import FusedDecoder
from plugrl_rollout_hf.generation import Row, generate_batch
from plugrl_rollout_hf.weights import lay_out, supports

from .conftest import DECODERS, PROMPTS, section

SEEDS = [11, 12, 13, 14, 15]


def recomputed(backend, prompt, completion, temperature):
    """Return what the policy's default_forward says about a completion."""
    ids = torch.tensor([[*prompt, *completion.tokens]])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "response_mask": torch.ones(1, len(completion.tokens)),
    }
    with torch.no_grad():
        return backend._policy(forward_inputs=inputs, temperature=temperature)["logprobs"][0]


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama", "mistral", "gpt2", "gemma3_text"])
def test_greedy_tokens_are_those_of_transformers_generate(start, family) -> None:
    sizes = {"gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2}, "gemma3_text": {"sliding_window": 4}}
    extra = {"sliding_window": None} if family == "mistral" else sizes.get(family, {})
    backend = start(model=section(family, **extra))
    assert backend._fused == (family not in sizes)
    params = SamplingParams(max_new_tokens=9, temperature=0.0, ignore_eos=True)
    completions = backend.generate(PROMPTS, params, SEEDS)
    model = backend._policy.model
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=9,
            min_new_tokens=9,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert list(completion.tokens) == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_are_what_training_recomputes(backend, temperature) -> None:
    params = SamplingParams(n=3, max_new_tokens=24, temperature=temperature, top_k=8, top_p=0.9)
    for completion in backend.generate(PROMPTS, params, SEEDS):
        wanted = recomputed(backend, PROMPTS[completion.prompt_index], completion, temperature)
        torch.testing.assert_close(completion.logprobs, wanted, atol=1e-5, rtol=1e-5)


def test_decoders_draw_the_same_samples(start, same) -> None:
    params = SamplingParams(n=4, max_new_tokens=40, temperature=1.2)
    first, *others = [start(decoder).generate(PROMPTS, params, SEEDS) for decoder in DECODERS]
    for other in others:
        same(first, other)


def test_long_prompts_are_shared_and_short_ones_are_not(start, same) -> None:
    params = SamplingParams(n=3, max_new_tokens=40, temperature=1.2)
    prompts = [[4 + index % 11 for index in range(length)] for length in (40, 33, 37)]
    same(*(start(decoder).generate(prompts, params, SEEDS[:3]) for decoder in ("fused", "transformers")))


def test_samples_do_not_depend_on_the_batch_around_them(start, backend, same) -> None:
    params = SamplingParams(n=3, max_new_tokens=20)
    whole = backend.generate(PROMPTS, params, SEEDS)
    for index, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS, strict=True)):
        alone = backend.generate([prompt], params, [seed])
        for one, other in zip(alone, whole[3 * index : 3 * index + 3], strict=True):
            assert one.tokens == other.tokens
            torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-5, rtol=0)
    for size in (1, 2, 4, 7):
        same(start(max_batch_size=size).generate(PROMPTS, params, SEEDS), whole)


def test_seeds_and_samples_differ_and_repeat(backend, same) -> None:
    params = SamplingParams(n=4, max_new_tokens=16, ignore_eos=True)
    first = backend.generate([[4, 5]] * 2, params, [1, 2])
    assert len({completion.tokens for completion in first}) == 8
    same(first, backend.generate([[4, 5]] * 2, params, [1, 2]))
    fewer = backend.generate([[4, 5]] * 2, SamplingParams(n=2, max_new_tokens=16, ignore_eos=True), [1, 2])
    assert [item.tokens for item in fewer] == [first[index].tokens for index in (0, 1, 4, 5)]


def test_samples_follow_the_model(start) -> None:
    backend = start()
    params = SamplingParams(n=4000, max_new_tokens=1, temperature=0.8)
    completions = backend.generate([[4, 5, 13]], params, [7])
    counts = torch.bincount(torch.tensor([item.tokens[0] for item in completions]), minlength=18).float()
    with torch.no_grad():
        shares = torch.softmax(backend._policy.model(torch.tensor([[4, 5, 13]])).logits[0, -1] / 0.8, -1)
    expected = shares * 4000
    used = expected > 5
    assert float((((counts - expected) ** 2)[used] / expected[used]).sum() / used.sum()) < 2.5
    truncated = backend.generate([[4, 5, 13]], SamplingParams(n=500, max_new_tokens=1, top_k=3), [7])
    assert {item.tokens[0] for item in truncated} == set(shares.topk(3).indices.tolist())


def test_a_stop_token_ends_a_sample_and_is_its_last(backend) -> None:
    params = SamplingParams(n=8, max_new_tokens=30, temperature=1.5, stop_token_ids=(7, 9))
    completions = backend.generate(PROMPTS, params, SEEDS)
    for completion in completions:
        assert not {1, 7, 9} & set(completion.tokens[:-1])
        assert (completion.tokens[-1] in (1, 7, 9)) == (completion.finish_reason == "stop")
        assert completion.finish_reason == "stop" or len(completion.tokens) == 30
        assert len(completion.logprobs) == len(completion.tokens)
    assert {completion.finish_reason for completion in completions} == {"stop"}


def test_min_new_tokens_and_ignore_eos_hold_stops_back(backend) -> None:
    params = SamplingParams(n=6, max_new_tokens=20, temperature=1.5, stop_token_ids=(7, 9), min_new_tokens=5)
    completions = backend.generate(PROMPTS, params, SEEDS)
    assert min(len(completion.tokens) for completion in completions) >= 6
    for completion in completions[:3]:
        wanted = recomputed(backend, PROMPTS[0], completion, 1.5)
        torch.testing.assert_close(completion.logprobs, wanted, atol=1e-5, rtol=0)
    free = backend.generate(PROMPTS, SamplingParams(n=6, max_new_tokens=20, ignore_eos=True), SEEDS)
    assert {len(completion.tokens) for completion in free} == {20}
    assert any(1 in completion.tokens for completion in free)


@pytest.mark.parametrize("decoder", [HFDecoder, FusedDecoder])
@pytest.mark.parametrize("name", ["shared", "fused"])
def test_prompts_are_prefilled_once_and_finished_rows_leave(start, decoder, name) -> None:
    backend = start(name)
    model = backend._policy.model
    arguments = (model,) if decoder is HFDecoder else (model, lay_out(model, pack=False))
    seen = []

    class Watched(decoder):
        """Records the rows of every call."""

        def prefill(self, ids, mask):
            """Record the number of prompts."""
            seen.append(("prefill", ids.shape[0]))
            return super().prefill(ids, mask)

        def step(self, tokens):
            """Record the number of rows."""
            seen.append(("step", tokens.shape[0]))
            return super().step(tokens)

    rows = [
        Row(tokens=prompt, prompt_index=index, sample_index=sample, seed=index)
        for index, prompt in enumerate([(4, 5, 6), (7, 8)])
        for sample in range(6)
    ]
    params = SamplingParams(n=6, max_new_tokens=30, temperature=1.5)
    with torch.inference_mode():
        drawn = generate_batch(
            Watched(*arguments), rows, params, stop_ids=(1, 7, 9), device=torch.device("cpu"), compact_at=0.125
        )
    sizes = [size for name, size in seen if name == "step"]
    assert [item for item in seen if item[0] == "prefill"] == [("prefill", 2)]
    assert sizes[0] <= 12 and sizes == sorted(sizes, reverse=True) and sizes[-1] < 6
    for step, size in enumerate(sizes):
        assert size - int((drawn.lengths > step + 1).sum()) < 0.125 * size


def test_an_unpadded_batch_needs_no_mask(start, same) -> None:
    params = SamplingParams(n=2, max_new_tokens=10)
    even = [[4, 5, 6], [7, 8, 9]]
    padded = [*even, [3]]
    for decoder in DECODERS:
        backend = start(decoder)
        same(backend.generate(even, params, [1, 2]), backend.generate(padded, params, [1, 2, 3])[:4])


# --------------------------------------------------------------------------- weights
def published(backend) -> list[tuple[str, torch.Tensor]]:
    """Return a copy of the backend's weights under their published names."""
    policy = backend._policy
    names = ((policy.published_name(name), tensor) for name, tensor in policy.state_dict().items())
    return [(name, tensor.clone()) for name, tensor in names if name]


def test_loaded_weights_are_used_and_marked(start, backend, same) -> None:
    params = SamplingParams(n=2, max_new_tokens=12)
    other = start("transformers", model=section(seed=5))
    before = backend.generate(PROMPTS, params, SEEDS)
    backend.load_weights(iter(published(other)), version=3)
    after = backend.generate(PROMPTS, params, SEEDS)
    same(after, other.generate(PROMPTS, params, SEEDS))
    assert {item.weight_version for item in before} == {0} and {item.weight_version for item in after} == {3}
    assert backend.weight_version == 3


def test_the_weights_that_are_shown_are_those_that_were_loaded(start, backend) -> None:
    sent = dict(published(start(model=section(seed=1))))
    backend.load_weights(iter(sent.items()), version=1)
    shown = dict(backend.named_weights())
    assert shown.keys() == sent.keys() and "lm_head.weight" not in shown
    assert all(torch.equal(shown[name], tensor) for name, tensor in sent.items())
    backend.close()
    with pytest.raises(WeightSyncError, match="no weights to show: it was closed"):
        next(backend.named_weights())


def test_a_load_that_fails_makes_it_refuse(backend) -> None:
    params = SamplingParams(max_new_tokens=2)
    weights = published(backend)

    def broken():
        yield weights[0]
        raise ConnectionError("the sender died")

    attempts = [weights[:-1], [*weights, ("extra", torch.zeros(1))], [(weights[0][0], torch.zeros(3)), *weights[1:]]]
    for version, attempt in enumerate(attempts, start=1):
        with pytest.raises(WeightSyncError, match=f"version {version}"):
            backend.load_weights(iter(attempt), version=version)
        with pytest.raises(WeightSyncError, match="half-way"):
            backend.generate([[4]], params, [1])
    with pytest.raises(ConnectionError):
        backend.load_weights(broken(), version=8)
    with pytest.raises(WeightSyncError, match="version 8 failed half-way"):
        backend.generate([[4]], params, [1])
    assert backend.weight_version == 0
    backend.load_weights(iter(weights), version=9)
    assert backend.generate([[4]], params, [1])[0].weight_version == 9


def test_sleep_and_wake(backend, same) -> None:
    params = SamplingParams(max_new_tokens=5)
    before = backend.generate(PROMPTS, params, SEEDS)
    backend.sleep()
    with pytest.raises(WeightSyncError, match="sleeps"):
        backend.generate(PROMPTS, params, SEEDS)
    with pytest.raises(WeightSyncError, match="sleeps"):
        backend.load_weights(iter(published(backend)), version=1)
    backend.wake()
    same(before, backend.generate(PROMPTS, params, SEEDS))
    backend.close()
    backend.close()
    with pytest.raises(WeightSyncError, match="closed"):
        backend.generate(PROMPTS, params, SEEDS)


def test_generating_needs_initialize_and_sound_prompts(backend) -> None:
    params = SamplingParams(max_new_tokens=2)
    with pytest.raises(WeightSyncError, match="not initialised"):
        backend_module.HFRolloutBackend(section(), None).generate([[4]], params, [1])
    assert backend.generate([], params, []) == []
    for prompts, seeds, message in (([[]], [1], "empty"), ([[99]], [1], "vocabulary"), ([[4]], [], "seeds")):
        with pytest.raises(ValueError, match=message):
            backend.generate(prompts, params, seeds)


# --------------------------------------------------------------------------- the choice of a decoder
def test_packed_weights_give_the_same_numbers(start, same) -> None:
    model = section("llama", hidden_size=128, intermediate_size=2048, attention_bias=True, mlp_bias=False)
    plain = backend_module.HFRolloutBackend(model, {"options": {"decoder": "fused", "pack_weights": False}})
    plain.initialize()
    packed = start("fused", model=model)
    params = SamplingParams(n=3, max_new_tokens=6)
    same(packed.generate(PROMPTS, params, SEEDS), plain.generate(PROMPTS, params, SEEDS))


def test_sliding_windows_and_strange_ropes_are_left_to_transformers(start) -> None:
    sliding = start(model=section("mistral", sliding_window=4))
    assert not supports(sliding._policy.model)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert not supports(start(model=section("llama", rope_parameters=dynamic))._policy.model)
    with pytest.raises(ConfigError, match="fused does not know Mistral"):
        start("fused", model=section("mistral", sliding_window=4))


def test_a_decoder_that_differs_is_not_trusted(start, monkeypatch, caplog) -> None:
    monkeypatch.setattr(backend_module, "largest_difference", lambda *arguments: 0.5)
    backend = start()
    assert not backend._fused and "own forward" in caplog.text
    with pytest.raises(ConfigError, match="differs from Qwen3ForCausalLM by 5.00e-01"):
        start("fused")


def test_bf16_runs_on_both_decoders(start) -> None:
    for decoder in DECODERS:
        backend = start(decoder, model={**section(), "precision": "bf16"})
        completions = backend.generate(PROMPTS, SamplingParams(max_new_tokens=6), SEEDS)
        assert all(torch.isfinite(item.logprobs).all() for item in completions)


def test_adopted_weights_are_kept_not_copied_and_a_mistake_changes_nothing(start, backend, same) -> None:
    params = SamplingParams(n=2, max_new_tokens=12)
    other = start("transformers", model=section(seed=5))
    sent = dict(published(other))
    for wrong in (dict(list(sent.items())[:-1]), {**sent, "extra": torch.zeros(1)}):
        before = backend.generate(PROMPTS, params, SEEDS)
        with pytest.raises(WeightSyncError, match="version 2 did not load"):
            backend.adopt_weights(wrong, version=2)
        same(backend.generate(PROMPTS, params, SEEDS), before)  # It still generates, with what it had.
    backend.adopt_weights(sent, version=3)
    same(backend.generate(PROMPTS, params, SEEDS), other.generate(PROMPTS, params, SEEDS))
    shown = dict(backend.named_weights())
    assert all(shown[name].data_ptr() == sent[name].data_ptr() for name in sent)
    assert backend.weight_version == 3
    half = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in sent.items()}
    backend.adopt_weights(half, version=4)  # Of another type they are copied.
    shown = dict(backend.named_weights())
    assert all(torch.equal(shown[name], tensor.to(sent[name].dtype)) for name, tensor in half.items())
