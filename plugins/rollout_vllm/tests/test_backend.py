"""The backend with a stand-in for vLLM, held to recorded signatures: what it asks for, and what it returns."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from plugrl.errors import ConfigError, MissingDependency, RuntimeTimeout, WeightSyncError
from plugrl.rollouts.base import RolloutPlace, SamplingParams
from plugrl_rollout_openai.backend import GenerationAborted
from plugrl_rollout_openai.engine import mixed_seed
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


def test_samples_come_whole_and_the_engine_is_built_as_configured(install, start) -> None:
    install(VERSION)
    backend = start(gpu_memory_utilization=0.5, engine_args={"max_num_seqs": 7})
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    assert backend.engine_version == f"vllm {VERSION}"
    (engine,) = StandIn.made
    wanted = {"dtype": "bfloat16", "gpu_memory_utilization": 0.5, "max_num_seqs": 7, "enable_sleep_mode": True,
              "logprobs_mode": "raw_logprobs", "enable_lora": None, "tensor_parallel_size": 1}  # fmt: skip
    assert {name: getattr(engine.arguments, name) for name in wanted} == wanted
    stop = scripted((4, 5, 6), mixed_seed(11, 0), 0.0, 8)[0][4]
    limits = SamplingParams(max_new_tokens=8, top_k=5, stop_token_ids=(stop,), min_new_tokens=1)
    (done,) = backend.generate(PROMPTS[:1], limits, SEEDS[:1])
    assert done.finish_reason == "stop" and done.tokens[-1] == stop and len(done.tokens) == 5
    assert engine.asked[-1][1].top_k == 5 and engine.asked[-1][1].min_tokens == 1
    backend.close()
    assert engine.closed


def test_an_engine_of_two_devices_sees_both_and_the_worker_its_own(install, start, monkeypatch) -> None:
    install(VERSION)
    monkeypatch.setenv("MASK", "gpu2")
    start(place=RolloutPlace(engine=1, engines=2, devices=("gpu2", "gpu3"), variable="MASK"), tensor_parallel_size=2)
    (engine,) = StandIn.made
    assert engine.mask == "gpu2,gpu3" and os.environ["MASK"] == "gpu2"
    assert engine.arguments.tensor_parallel_size == 2
    from plugrl_rollout_vllm.backend import VLLMRolloutBackend

    assert VLLMRolloutBackend.ranks_per_engine({"options": {"tensor_parallel_size": 2}}) == 2


def test_weights_are_replaced_in_place_and_prefixes_forgotten(install, start) -> None:
    install(VERSION)
    backend = start()
    (engine,) = StandIn.made
    engine.log.clear()
    backend.load_weights(iter(scripted_weights(0.5).items()), 3)
    assert engine.log == ["pause abort", "label loading", "load", "forget", "label", "resume"]
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, 3)
    engine.reset_works, backend.options = False, backend.options.model_copy(update={"control_timeout_s": 1.0})
    with pytest.raises(WeightSyncError, match="version 4 did not load.*did not forget cached prefixes"):
        backend.adopt_weights(scripted_weights(0.7), 4)
    with pytest.raises(WeightSyncError, match="half-way"):
        backend.generate(PROMPTS, PARAMS, SEEDS)
    engine.reset_works, backend.options = True, backend.options.model_copy(update={"control_timeout_s": 60.0})
    backend.adopt_weights(scripted_weights(0.7), 5)
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.7, 5)


def test_sleep_gives_all_memory_back_and_the_weights_return_first(install, start) -> None:
    install(VERSION)
    backend = start()
    (engine,) = StandIn.made
    for version in (0, 1):
        if version:
            backend.load_weights(iter(scripted_weights(0.5).items()), 1)
        backend.sleep()
        assert engine.level == 2
        with pytest.raises(WeightSyncError, match="it sleeps"):
            backend.generate(PROMPTS, PARAMS, SEEDS)
        backend.wake()
        check(backend.generate(PROMPTS, PARAMS, SEEDS), version / 2, version)


def test_an_adapter_is_applied_by_the_engine_and_the_old_one_leaves(install, start) -> None:
    install(VERSION)
    backend = start(native_lora=True, max_lora_rank=8)
    (engine,) = StandIn.made
    assert engine.arguments.enable_lora and engine.arguments.max_lora_rank == 8
    for version in (1, 2):
        adapter = {f"base_model.model.a.lora_{part}.weight": torch.ones(2, 3) for part in "AB"}
        engine.log.clear()
        backend.load_adapter({**scripted_weights(0.5), **adapter}, {"r": 2}, version)
        assert ("load" in engine.log) == (version == 1), "weights that are there are not sent again"
        check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.5, version)
        assert len(engine.adapters) == 1 and engine.asked[-1][2].lora_name.endswith(f"-{version}")


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
    assert len(engine.given_up) == 4
    assert [len(item.tokens) for item in caught.value.unfinished] == [3] * 4
    done = backend.resume(caught.value)
    assert [len(item.tokens) for item in done] == [8] * 4 and {item.weight_version for item in done} == {0}
    assert sorted(len(item[0]["prompt_token_ids"]) for item in engine.asked[4:]) == [5, 5, 6, 6]


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_request_that_fails_is_tried_again(install, start, fault) -> None:
    install(VERSION)
    backend = start(idle_timeout_s=0.2)
    (engine,) = StandIn.made
    engine.faults = [fault]
    check(backend.generate(PROMPTS, PARAMS, SEEDS), 0.0, 0)
    engine.faults = ["dies"] * 1000
    backend.options = backend._drawer._options = backend.options.model_copy(update={"sample_timeout_s": 1.0})
    with pytest.raises(RuntimeTimeout, match="vLLM: RuntimeError: EngineDeadError"):
        backend.generate(PROMPTS, PARAMS, SEEDS)


def test_log_probabilities_are_asked_for_as_training_needs_them(install, start) -> None:
    install(VERSION)
    backend = start(rollout={"temperature": 0.7})
    assert StandIn.made[0].arguments.logprobs_mode == "processed_logprobs"
    warm, greedy = (SamplingParams(max_new_tokens=4, temperature=value) for value in (0.7, 0.0))
    assert not backend.generate(PROMPTS, warm, SEEDS)[0].logprobs.isnan().any()
    assert backend.generate(PROMPTS, greedy, SEEDS)[0].logprobs.isnan().all()
    with pytest.raises(ConfigError, match="rollout.temperature: 0.7 together with rollout.top_k=5"):
        start(rollout={"temperature": 0.7, "top_k": 5})


def test_versions_are_checked_before_the_engine_is_built(install, start, monkeypatch) -> None:
    with pytest.raises(MissingDependency, match=f"vllm is not installed.*vllm=={VERSION}.*python_interpreter_path"):
        start()
    install("0.99.0")
    with pytest.raises(ConfigError, match=r"vllm 0\.99\.0 lacks.*AsyncLLM\.generate is missing.*have it: 0\.33\.0"):
        start()
    assert StandIn.made == []
    install_known = {"engine_args": {"seed": 3}}
    monkeypatch.setattr("plugrl_rollout_vllm.engine.CHECKED", ("0.99.0",))
    with pytest.raises(ConfigError, match="engine_args: seed is set by PlugRL"):
        start(**install_known)
