"""The backend with servers that do what they should: samples, versions, weights, sleep, adapters, sharing out."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path

import pytest
import torch

from plugrl.errors import ConfigError, PlugRLError, RuntimeTimeout, UnsupportedCapability, WeightSyncError
from plugrl.rollouts.base import RolloutPlace, SamplingParams
from plugrl_rollout_openai.backend import GenerationAborted, Unfinished
from plugrl_rollout_openai.engine import EngineRefusal, SampleRequest, is_exact, mixed_seed
from plugrl_rollout_openai.options import ServerOptions
from plugrl_rollout_openai.server_backend import ServerRolloutBackend, needed_mode
from plugrl_rollout_openai.testing import scripted
from plugrl_rollout_openai.testing import scripted_weights as tensors

from .fake_server import KEY

PARAMS = SamplingParams(n=2, max_new_tokens=8)
PROMPTS = [[4, 5, 6], [7, 8], [4, 5, 6]]
SEEDS = [11, 12, 13]


def expected(weight: float, count: int = 8) -> list[tuple[tuple[int, ...], list[float]]]:
    """What the scripted model gives for PROMPTS."""
    found = []
    for prompt, seed in zip(PROMPTS, SEEDS, strict=True):
        for sample in range(2):
            tokens, logprobs = scripted(tuple(prompt), mixed_seed(seed, sample), weight, count)
            found.append((tuple(tokens), logprobs))
    return found


def check(completions, weight: float, version: int) -> None:
    """Every sample is whole, in its place, and of one version alone."""
    places = [(item.prompt_index, item.sample_index) for item in completions]
    assert places == [(prompt, sample) for prompt in range(3) for sample in (0, 1)]
    for item, (tokens, logprobs) in zip(completions, expected(weight), strict=True):
        assert item.tokens == tokens and item.weight_version == version and item.finish_reason == "length"
        torch.testing.assert_close(item.logprobs, torch.tensor(logprobs))


@pytest.mark.parametrize("cumulative", [True, False])
def test_samples_come_whole_in_order_and_by_their_seeds(serve, drive, dialect, cumulative) -> None:
    server = serve(dialect)
    server.cumulative = cumulative
    backend = drive(server)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    alone = backend.generate(PROMPTS[1:2], PARAMS, SEEDS[1:2])
    assert [item.tokens for item in alone] == [tokens for tokens, _ in expected(0.0)[2:4]]
    assert backend.engine_version == {"vllm": "vllm 0.33.0", "sglang": "sglang 0.5.23"}[dialect]


def test_sampling_parameters_reach_the_server_and_a_stop_token_is_the_last(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    stop = expected(0.0)[0][0][4]
    params = SamplingParams(
        max_new_tokens=8, top_k=7, top_p=0.9, stop_token_ids=(stop,), min_new_tokens=2
    )
    (done,) = backend.generate(PROMPTS[:1], params, SEEDS[:1])
    assert done.finish_reason == "stop" and done.tokens[-1] == stop and len(done.logprobs) == len(done.tokens) == 5
    sent = server.bodies[-1].get("sampling_params", server.bodies[-1])
    assert (sent["top_k"], sent["top_p"], sent["ignore_eos"], sent["stop_token_ids"]) == (7, 0.9, False, [stop])
    backend.generate(PROMPTS[:1], SamplingParams(max_new_tokens=1, ignore_eos=True), [1])
    sent = server.bodies[-1].get("sampling_params", server.bodies[-1])
    assert sent["top_k"] == {"vllm": 0, "sglang": -1}[dialect] and sent["ignore_eos"] is True
    both = SamplingParams(max_new_tokens=1, ignore_eos=True, stop_token_ids=(1,))
    if dialect == "sglang":
        with pytest.raises(EngineRefusal, match="looks at no stop token"):
            backend.generate(PROMPTS[:1], both, [1])


def test_new_weights_are_used_marked_and_forget_prefixes(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    with pytest.raises(UnsupportedCapability):
        next(backend.named_weights())
    backend.load_weights(iter(tensors(0.5).items()), 3)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 3)
    assert backend.weight_version == 3
    assert {"vllm": "/reset_prefix_cache", "sglang": "/update_weights_from_disk"}[dialect] in server.calls
    backend.adopt_weights(tensors(0.75), 4)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.75, 4)
    shown = dict(backend.named_weights())
    assert shown.keys() == tensors(0.75).keys() and shown["a.weight"].unique().tolist() == [0.75]
    assert len(list(backend._folder.root.iterdir())) == 1, "the folder of the version before is dropped"
    root = backend._folder.root
    backend.close()
    assert not root.exists()


def test_weights_that_do_not_fit_are_refused_by_name(serve, drive) -> None:
    server = serve()
    backend = drive(server)
    whole = tensors(0.5)
    wrong = [
        ({"a.weight": whole["a.weight"]}, "missing: b.weight"),
        ({**whole, "c": torch.zeros(1)}, "unknown: c"),
        ({**whole, "b.weight": torch.zeros(5)}, "of another shape: b.weight"),
    ]
    for values, message in wrong:
        with pytest.raises(WeightSyncError, match=message):
            backend.adopt_weights(values, 1)
        check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)  # Nothing was changed.
    with pytest.raises(WeightSyncError, match="missing"):
        backend.load_weights(iter(wrong[0][0].items()), 2)
    with pytest.raises(WeightSyncError, match="version 2 failed half-way"):
        backend.generate(PROMPTS, PARAMS, SEEDS)
    backend.load_weights(iter([*whole.items(), ("lm_head.weight", torch.zeros(1))]), 3)  # Tied: may come or not.
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 3)


def test_sleep_frees_the_server_and_the_weights_are_back_before_the_next_sample(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server)
    backend.load_weights(iter(tensors(0.5).items()), 1)
    backend.sleep()
    assert server.state.asleep
    for call in (lambda: backend.generate(PROMPTS, PARAMS, SEEDS), lambda: backend.adopt_weights(tensors(1.0), 2)):
        with pytest.raises(WeightSyncError, match="it sleeps"):
            call()
    backend.wake()
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 1)
    backend.sleep()
    backend.wake()
    backend.adopt_weights(tensors(0.25), 2)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.25, 2)


def test_an_adapter_goes_alone_once_the_weights_under_it_are_there(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server, native_lora=True)
    assert backend.merges_adapters
    base, prefix = tensors(0.5), "base_model.model.a"
    for version in (1, 2):
        adapter = {f"{prefix}.lora_A.weight": torch.ones(2, 3) * version, f"{prefix}.lora_B.weight": torch.ones(2, 2)}
        server.calls.clear()
        backend.load_adapter({**base, **adapter}, {"r": 2, "target_modules": {"a"}}, version)
        wrote = {"vllm": "/collective_rpc", "sglang": "/update_weights_from_disk"}[dialect]
        assert (wrote in server.calls) == (version == 1)
        (name,) = server.state.adapters  # The one before is gone.
        check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, version)
        assert server.bodies[-1].get("lora_path", server.bodies[-1].get("model")) == name
    config = json.loads(Path(server.state.adapters[name], "adapter_config.json").read_text())
    assert config == {"r": 2, "target_modules": ["a"]}
    server.restart()
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 2)
    assert list(server.state.adapters) == [name]


def test_what_was_given_up_is_finished_later_and_never_of_two_versions(serve, drive, dialect) -> None:
    server = serve(dialect)
    backend = drive(server, idle_timeout_s=5.0)
    server.faults = [None, None, "slow", "slow", None, None]

    def stop() -> None:
        while server.served < 6:
            time.sleep(0.01)
        time.sleep(0.3)
        backend.abort()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(GenerationAborted) as caught:
        backend.generate(PROMPTS, PARAMS, SEEDS)
    thread.join()
    assert len(caught.value.done) == 4 and len(caught.value.unfinished) == 2
    backend.adopt_weights(tensors(0.5), 1)
    done = backend.resume(caught.value)
    assert sorted(item.weight_version for item in done) == [0, 0, 0, 0, 1, 1]
    old, new = expected(0.0), expected(0.5)
    for index, item in enumerate(done):
        assert item.tokens == (new if item.weight_version else old)[index][0]


def test_a_sample_goes_on_behind_its_tokens_while_the_weights_are_the_same(serve, drive) -> None:
    server = serve(piece=3)
    backend = drive(server)
    (whole,) = backend.generate(PROMPTS[:1], SamplingParams(max_new_tokens=8), SEEDS[:1])
    asked = SampleRequest(id="x", prompt=(4, 5, 6), params=SamplingParams(max_new_tokens=8), seed=5)
    left = Unfinished(prompt_index=0, sample_index=0, request=asked, tokens=whole.tokens[:3],
                      logprobs=tuple(whole.logprobs[:3].tolist()), weight_version=0)  # fmt: skip
    (done,) = backend.resume(GenerationAborted([], [left]))
    assert done.tokens[:3] == whole.tokens[:3] and len(done.tokens) == len(done.logprobs) == 8
    assert server.bodies[-1]["prompt"] == [4, 5, 6, *whole.tokens[:3]] and server.bodies[-1]["max_tokens"] == 5


# ---------------------------------------------------------------------------------------------------------- sharing out
def test_several_servers_share_the_samples_and_all_get_the_weights(serve, drive) -> None:
    servers = [serve(), serve()]
    backend = drive(*servers, concurrency=2)
    backend.load_weights(iter(tensors(0.5).items()), 1)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 1)
    assert min(server.served for server in servers) > 0


def test_each_rank_has_servers_of_its_own(serve, drive) -> None:
    servers = [serve(), serve(), serve()]
    for rank, mine in ((0, [0, 2]), (1, [1])):
        backend = drive(*servers, place=RolloutPlace(engine=rank, engines=2))
        assert [engine.title for engine in backend._engines] == [servers[index].url for index in mine]
    with pytest.raises(ConfigError, match="3 servers for 4 ranks of the rollout: each needs one"):
        drive(*servers, place=RolloutPlace(engine=3, engines=4))


def test_servers_of_different_versions_are_not_mixed(serve, drive) -> None:
    with pytest.raises(ConfigError, match=r"different versions: sglang 0\.5\.23, vllm 0\.33\.0"):
        drive(serve("vllm"), serve("sglang"))


def test_a_plain_server_samples_and_takes_no_weights(serve, drive) -> None:
    backend = drive(serve("plain"))
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    with pytest.raises(WeightSyncError, match="takes no weights.*dialect=plain"):
        backend.adopt_weights(tensors(1.0), 1)


# ------------------------------------------------------------------------------------------------------------- mistakes
def test_the_key_comes_from_the_environment_and_is_told_to_nobody(serve, drive, monkeypatch, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    server = serve(key=KEY)
    backend = drive(server, api_key_env="MY_KEY")
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    assert KEY not in repr(backend.options) and KEY not in backend.options.model_dump_json()
    monkeypatch.setenv("MY_KEY", "sk-wrong-key")
    with pytest.raises(EngineRefusal, match="the key in MY_KEY was not taken") as caught:
        drive(server, api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="MY_KEY is not set"):
        drive(server, api_key_env="MY_KEY")
    with pytest.raises(EngineRefusal, match="it wants a key"):
        drive(server)
    told = str(caught.value) + caplog.text
    assert KEY not in told and "sk-wrong-key" not in told


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"urls": ["127.0.0.1:8000"]}, "must start with http"),
        ({"urls": ["http://me:secret@host"]}, "holds no password"),
        ({"urls": ["http://a", "http://a"]}, "stands there twice"),
        ({"api_key_env": "sk-123"}, "api_key_env"),
        ({"api_key": "sk-123"}, "api_key"),
    ],
)
def test_wrong_options_are_refused(values, message) -> None:
    with pytest.raises(ValueError, match=message):
        ServerOptions.model_validate(values)


def test_prompts_and_states_are_checked(serve, drive) -> None:
    backend = drive(serve())
    assert backend.generate([], PARAMS, []) == []
    for prompts, seeds, message in (([[]], [1], "empty"), ([[-1]], [1], "below 0"), ([[4]], [], "seeds")):
        with pytest.raises(ValueError, match=message):
            backend.generate(prompts, PARAMS, seeds)
    backend.close()
    backend.close()
    with pytest.raises(WeightSyncError, match="closed"):
        backend.generate(PROMPTS, PARAMS, SEEDS)
    with pytest.raises(PlugRLError, match="closed"):
        backend.load_weights(iter(()), 1)


def test_log_probabilities_that_the_engine_cannot_tell_are_not_made_up(serve, drive) -> None:
    assert needed_mode({"temperature": 1.0, "top_k": 5}) == "raw"
    assert needed_mode({"temperature": 0.7}) == "processed"
    with pytest.raises(ConfigError, match=r"0\.7 together with rollout\.top_k=5"):
        needed_mode({"temperature": 0.7, "top_k": 5})
    warm, greedy = (SamplingParams(max_new_tokens=4, temperature=value) for value in (0.7, 0.0))
    assert [is_exact(mode, warm) for mode in ("raw", "processed", "scaled")] == [False, True, True]
    assert [is_exact(mode, greedy) for mode in ("raw", "processed", "scaled")] == [True, False, True]
    server = serve()
    with pytest.raises(ConfigError, match="start the server with --logprobs-mode raw_logprobs") as caught:
        ServerRolloutBackend(
            {}, {"temperature": 1.0, "top_k": 5, "options": {"urls": [server.url], "logprobs_mode": "processed"}}
        ).initialize()
    assert "logprobs_mode: processed" in str(caught.value)
    backend = drive(server)
    (done,) = backend.generate(PROMPTS[:1], warm, [1])
    assert done.logprobs.isnan().all() and len(done.tokens) == 4


def test_a_server_that_is_not_there_is_waited_for_until_the_deadline(serve, drive) -> None:
    server = serve()
    server.stop()
    began = time.monotonic()
    with pytest.raises(RuntimeTimeout, match=r"not done within 0\.3 s, the last answer: http://127.*/health"):
        drive(server, start_timeout_s=0.3)
    assert time.monotonic() - began < 20
    timer = threading.Timer(0.2, server.start)
    timer.start()
    check(drive(server).generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    timer.join()
