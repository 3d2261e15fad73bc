"""With vLLM itself on a real accelerator. Never run where the package was written; see the README."""

from __future__ import annotations

import pytest
import torch

from plugrl.models import get_model
from plugrl.plugins import load_plugins
from plugrl.rollouts.base import SamplingParams
from plugrl_rollout_vllm.backend import VLLMRolloutBackend

pytestmark = pytest.mark.gpu
MODEL = {
    "model_type": "causal_lm", "precision": "bf16", "seed": 0,
    "config": {"model_type": "qwen3", "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
               "tie_word_embeddings": True},
    "tokenizer": {"type": "characters", "alphabet": "0123456789"},
}  # fmt: skip
PROMPTS, SEEDS = [[4, 5, 6], [7, 8, 9, 10]], [1, 2]
PARAMS = SamplingParams(n=2, max_new_tokens=16, ignore_eos=True)


def test_it_agrees_with_the_policy_takes_weights_and_sleeps() -> None:
    pytest.importorskip("vllm")
    load_plugins()
    policy = get_model(MODEL).eval()
    options = {"gpu_memory_utilization": 0.3, "enforce_eager": True, "max_model_len": 512}
    backend = VLLMRolloutBackend(MODEL, {"options": options})
    backend.initialize()
    try:
        first = backend.generate(PROMPTS, PARAMS, SEEDS)
        for item in first:
            ids = torch.tensor([[*PROMPTS[item.prompt_index], *item.tokens]])
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "response_mask": torch.ones(1, 16)}
            with torch.no_grad():
                wanted = policy(forward_inputs=inputs)["logprobs"][0].float()
            torch.testing.assert_close(item.logprobs, wanted, atol=0.1, rtol=0.1)
        named = ((policy.published_name(name), value) for name, value in policy.state_dict().items())
        state = {name: value for name, value in named if name is not None}
        backend.adopt_weights({name: value * 1.5 for name, value in state.items()}, 1)
        assert [item.tokens for item in backend.generate(PROMPTS, PARAMS, SEEDS)] != [item.tokens for item in first]
        backend.adopt_weights(state, 2)
        again = backend.generate(PROMPTS, PARAMS, SEEDS)
        assert [item.tokens for item in again] == [item.tokens for item in first]
        assert {item.weight_version for item in again} == {2}
        awake = torch.accelerator.get_memory_info()[0]
        backend.sleep()
        assert torch.accelerator.get_memory_info()[0] > awake + 2**30
        backend.wake()
        assert [item.tokens for item in backend.generate(PROMPTS, PARAMS, SEEDS)] == [item.tokens for item in first]
    finally:
        backend.close()
