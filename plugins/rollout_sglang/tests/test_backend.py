"""The backend with a stand-in for SGLang, held to recorded signatures: what it asks for, and what it returns."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from plugrl.errors import ConfigError, MissingDependency, RuntimeTimeout, WeightSyncError
from plugrl.rollouts.base import RolloutPlace, SamplingParams
from plugrl_rollout_openai.backend import GenerationAborted
from plugrl_rollout_openai.engine import EngineRefusal, mixed_seed
from plugrl_rollout_openai.testing import scripted, scripted_weights

from .conftest import VERSION, StandIn

PARAMS = SamplingParams(n=2, max_new_tokens=8)
PROMPTS, SEEDS = [[4, 5, 6], [7, 8]], [11, 12]


def check(completions, weight: float, version: int) -> None:
    """Every sample is what the scripted model gives with this weight."""
    assert [(item.prompt_index, item.sample_index) for item in completions] == [(p, s) for p in (0, 1) for s in (0, 1)]
    for item in completions:
        seed = mixed_seed(SEEDS[item.prompt_index], item.sample_index)
        tokens, logprobs = scripted(tuple(PROMPTS[item.prompt_index]), seed, weight, 8)
        assert item.tokens == tuple(tokens) and item.weight_version == version
        torch.testing.assert_close(item.logprobs, torch.tensor(logprobs))


@pytest.mark.parametrize("cumulative", [True, False])
def test_samples_come_whole_and_the_engine_is_built_as_configured(install, start, cumulative) -> None:
    install(VERSION)
    backend = start(mem_fraction_static=0.5, deterministic=True, engine_args={"max_running_requests": 7})
    (engine,) = StandIn.made
    engine.cumulative = cumulative
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    assert backend.engine_version == f"sglang {VERSION}"
    wanted = {"dtype": "bfloat16", "mem_fraction_static": 0.5, "max_running_requests": 7, "enable_memory_saver": True,
              "enable_deterministic_inference": True, "tp_size": 1}  # fmt: skip
    assert {name: engine.arguments[name] for name in wanted} == wanted and "enable_lora" not in engine.arguments
    warm = SamplingParams(max_new_tokens=8, temperature=0.7, top_k=5, top_p=0.9)
    assert not backend.generate(PROMPTS, warm, SEEDS)[0].logprobs.isnan().any(), "it tells them before truncation"
    with pytest.raises(EngineRefusal, match="looks at no stop token"):
        backend.generate(PROMPTS, SamplingParams(max_new_tokens=8, stop_token_ids=(1,), ignore_eos=True), SEEDS)
    backend.close()
    assert engine.closed


def test_an_engine_of_two_devices_sees_both_and_the_worker_its_own(install, start, monkeypatch) -> None:
    install(VERSION)
    monkeypatch.setenv("MASK", "gpu2")
    start(place=RolloutPlace(engine=1, engines=2, devices=("gpu2", "gpu3"), variable="MASK"), tensor_parallel_size=2)
    (engine,) = StandIn.made
    assert engine.mask == "gpu2,gpu3" and os.environ["MASK"] == "gpu2" and engine.arguments["tp_size"] == 2
    from plugrl_rollout_sglang.backend import SGLangRolloutBackend

    assert SGLangRolloutBackend.ranks_per_engine({"options": {"tensor_parallel_size": 2}}) == 2


def test_weights_are_replaced_in_place_at_a_version(install, start) -> None:
    install(VERSION)
    backend = start()
    manager = StandIn.made[0].tokenizer_manager
    manager.log.clear()
    backend.load_weights(iter(scripted_weights(0.5).items()), 3)
    assert manager.log == ["pause abort", "label loading", "load", "continue"]
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 3)
    manager.fails, backend.options = "out of memory", backend.options.model_copy(update={"control_timeout_s": 1.0})
    with pytest.raises(WeightSyncError, match="version 4 did not load.*out of memory"):
        backend.adopt_weights(scripted_weights(0.7), 4)
    with pytest.raises(WeightSyncError, match="half-way"):
        backend.generate(PROMPTS, PARAMS, SEEDS)
    manager.fails, backend.options = "", backend.options.model_copy(update={"control_timeout_s": 60.0})
    backend.adopt_weights(scripted_weights(0.7), 5)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.7, 5)


def test_sleep_gives_all_memory_back_and_the_weights_return_first(install, start) -> None:
    install(VERSION)
    backend = start()
    for version in (0, 1):
        if version:
            backend.load_weights(iter(scripted_weights(0.5).items()), 1)
        backend.sleep()
        assert StandIn.made[0].tokenizer_manager.released
        with pytest.raises(WeightSyncError, match="it sleeps"):
            backend.generate(PROMPTS, PARAMS, SEEDS)
        backend.wake()
        check(backend.generate(PROMPTS, PARAMS, SEEDS), version / 2, version)


def test_an_adapter_is_applied_by_the_engine_and_the_old_one_leaves(install, start) -> None:
    install(VERSION)
    backend = start(native_lora=True, max_lora_rank=8)
    (engine,) = StandIn.made
    assert engine.arguments["enable_lora"] and engine.arguments["lora_target_modules"] == ["all"]
    manager = engine.tokenizer_manager
    for version in (1, 2):
        adapter = {f"base_model.model.a.lora_{part}.weight": torch.ones(2, 3) for part in "AB"}
        manager.log.clear()
        backend.load_adapter({**scripted_weights(0.5), **adapter}, {"r": 2}, version)
        assert ("load" in manager.log) == (version == 1) and "forget" in manager.log
        check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, version)
        assert list(manager.adapters) == [engine.asked[-1]["lora_path"]]
    manager.fails, backend.options = "rank too large", backend.options.model_copy(update={"control_timeout_s": 1.0})
    with pytest.raises(WeightSyncError, match="adapter of version 3 did not load.*rank too large"):
        backend.load_adapter({**scripted_weights(0.5), **adapter}, {"r": 2}, 3)


def test_requests_are_aborted_in_the_engine_and_resumed(install, start) -> None:
    install(VERSION)
    backend = start(idle_timeout_s=5.0)
    (engine,) = StandIn.made
    engine.faults = ["hangs"] * 4

    def stop() -> None:
        while len(engine.asked) < 4:
            time.sleep(0.01)
        time.sleep(0.1)
        backend.abort()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(GenerationAborted, match="0 samples are whole, 4 are not") as caught:
        backend.generate(PROMPTS, PARAMS, SEEDS)
    thread.join()
    assert len(set(engine.tokenizer_manager.given_up)) == 4
    done = backend.resume(caught.value)
    assert [len(item.tokens) for item in done] == [8] * 4 and {item.weight_version for item in done} == {0}
    assert sorted(len(item["input_ids"]) for item in engine.asked[4:]) == [5, 5, 6, 6]
    backend.generate(PROMPTS, PARAMS, SEEDS)
    assert len(engine.tokenizer_manager.given_up) == 4, "what ended is not aborted"


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_request_that_fails_is_tried_again(install, start, fault) -> None:
    install(VERSION)
    backend = start(idle_timeout_s=0.2)
    (engine,) = StandIn.made
    engine.faults = [fault]
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    engine.faults = ["dies"] * 1000
    backend.options = backend._drawer._options = backend.options.model_copy(update={"sample_timeout_s": 1.0})
    with pytest.raises(RuntimeTimeout, match="SGLang: ValueError: scheduler died"):
        backend.generate(PROMPTS, PARAMS, SEEDS)


def test_versions_are_checked_before_the_engine_is_built(install, start) -> None:
    with pytest.raises(MissingDependency, match=f"sglang is not installed.*sglang=={VERSION}"):
        start()
    install("0.4.0")
    with pytest.raises(ConfigError, match=r"sglang 0\.4\.0 lacks.*async_generate is missing.*have it: 0\.5\.23"):
        start()
    assert StandIn.made == []
