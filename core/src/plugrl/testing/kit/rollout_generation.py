"""The kit for rollout backends: samples, their log-probabilities, and weights by version.

It generates with the tiny example of a model type that is installed and that can generate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from plugrl.errors import ConfigError, MissingDependency, PlugRLError, one_line
from plugrl.models.base import BasePolicy
from plugrl.registry import import_target
from plugrl.rollouts.base import Completion, RolloutBackend, SamplingParams
from plugrl.testing.kit.checks import CheckSkipped, check, expect, expect_equal, expect_raises
from plugrl.testing.kit.context import HOST, Context

PROMPTS = [[4, 5, 6], [7, 8, 9, 10, 11], [4, 5, 6], [3]]
SEEDS = [11, 12, 13, 14]
SAMPLING = SamplingParams(n=2, max_new_tokens=6, ignore_eos=True)
GREEDY = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True)


def _model(kit: Context) -> tuple[dict[str, Any], BasePolicy]:
    """The configuration and the policy of the first model type that has an example and can generate."""
    from plugrl.models import get_model
    from plugrl.models.registry import MODELS

    kit.platform  # noqa: B018  (builders ask for it)
    for key in MODELS.keys():
        example = MODELS.entry(key).meta.get("example")
        if example:
            config = import_target(example)()
            policy = get_model(config, "fp32").eval()
            if "generate" in policy.capabilities():
                return config, policy
    raise CheckSkipped("no installed model type declares an example that can generate: install plugrl-models-hf")


def backends(kit: Context) -> Iterator[tuple[str, RolloutBackend, BasePolicy]]:
    """Yield name, an initialised backend and the policy that it has a copy of, for each backend of the plugin."""
    from plugrl.rollouts.registry import get_rollout

    config, policy = _model(kit)
    for entry in kit.entries("rollout"):
        backend = get_rollout(str(entry.key))(config, {"options": {}})
        try:
            backend.initialize()
        except (MissingDependency, ConfigError) as error:
            raise CheckSkipped(f"{entry.key} cannot start here without more: {one_line(error)}") from error
        try:
            yield str(entry.key), backend, policy
        finally:
            backend.close()


def _tokens(completions: list[Completion]) -> list[list[int]]:
    return [[int(token) for token in item.tokens] for item in completions]


def _recomputed(policy: BasePolicy, prompt: list[int], completion: Completion) -> torch.Tensor:
    ids = torch.tensor([[*prompt, *(int(token) for token in completion.tokens)]])
    mask = torch.ones(1, len(completion.tokens), dtype=torch.long)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "response_mask": mask}
    with torch.no_grad():
        found: torch.Tensor = policy(forward_inputs=batch)["logprobs"][0]
    return found


def _shifted(value: torch.Tensor) -> torch.Tensor:
    """Other weights of the same shape, far enough from the first to change what is likely."""
    if not value.is_floating_point():
        return value
    return value + 0.3 * torch.sin(torch.arange(value.numel()).view(value.shape).to(value.dtype))


@check("rollout.generate", gate=True)
def generate(kit: Context) -> None:
    """A backend returns the completions of every prompt in order, with their lengths, and is closed twice in peace."""
    for name, backend, _ in backends(kit):
        found = backend.generate(PROMPTS, SAMPLING, SEEDS)
        order = [(item.prompt_index, item.sample_index) for item in found]
        expect_equal(order, [(prompt, sample) for prompt in range(4) for sample in range(2)], f"{name}: the order")
        for item in found:
            expect_equal((len(item.tokens), len(item.logprobs)), (6, 6), f"{name}: tokens and log-probabilities")
            expect_equal(item.finish_reason, "length", f"{name}: why a sample ended")
            expect_equal(item.weight_version, 0, f"{name}: the version of the first weights")
        backend.close()
        backend.close()


@check("rollout.logprobs", fix="Report log-probabilities of the temperature-scaled, untruncated distribution.")
def logprobs(kit: Context) -> None:
    """The log-probabilities of sampled tokens are those that the policy recomputes."""
    for name, backend, policy in backends(kit):
        for item in backend.generate(PROMPTS, SAMPLING, SEEDS):
            expected = _recomputed(policy, PROMPTS[item.prompt_index], item)
            worst = (item.logprobs.to(HOST).float() - expected).abs().max().item()
            expect(worst < 1e-3, f"{name}: prompt {item.prompt_index}", got=worst, expected="within 1e-3")


@check("rollout.seeds", fix="Draw from (seed of the prompt, number of the sample) alone.")
def seeds(kit: Context) -> None:
    """The same seed gives the same sample, whatever else is in the batch; another seed gives another one."""
    for name, backend, _ in backends(kit):
        together = _tokens(backend.generate(PROMPTS, SAMPLING, SEEDS))
        expect_equal(_tokens(backend.generate(PROMPTS, SAMPLING, SEEDS)), together, f"{name}: a second run")
        expect_equal(_tokens(backend.generate(PROMPTS[1:2], SAMPLING, SEEDS[1:2])), together[2:4], f"{name}: one alone")
        expect(_tokens(backend.generate(PROMPTS, SAMPLING, [seed + 100 for seed in SEEDS])) != together,
               f"{name}: other seeds give the same samples")  # fmt: skip


@check("rollout.weights")
def weights(kit: Context) -> None:
    """New weights are used and their version marks samples; a stream that lacks a tensor is refused, loudly."""
    for name, backend, policy in backends(kit):
        state = [(str(policy.published_name(key)), _shifted(value)) for key, value in policy.state_dict().items()
                 if policy.published_name(key) is not None]  # fmt: skip
        before = _tokens(backend.generate(PROMPTS, GREEDY, SEEDS))
        backend.load_weights(iter(state), 3)
        found = backend.generate(PROMPTS, GREEDY, SEEDS)
        expect_equal({item.weight_version for item in found} | {backend.weight_version}, {3}, f"{name}: the version")
        expect(_tokens(found) != before, f"{name}: new weights change no token")
        shown = dict(backend.named_weights())
        for key, value in state:
            expect(torch.equal(shown[key].to(HOST), value), f"{name}: {key} is not what was loaded")
        expect_raises(PlugRLError, partial(backend.load_weights, iter(state[:-1]), 4), f"{name}: a tensor less")
        expect_raises(PlugRLError, partial(backend.generate, PROMPTS, GREEDY, SEEDS), f"{name}: half the weights")
        backend.load_weights(iter(state), 5)
        expect_equal(_tokens(backend.generate(PROMPTS, GREEDY, SEEDS)), _tokens(found), f"{name}: after loading again")


@check("rollout.sleep")
def sleep(kit: Context) -> None:
    """A backend that slept generates as before, and none that sleeps."""
    for name, backend, _ in backends(kit):
        before = _tokens(backend.generate(PROMPTS, GREEDY, SEEDS))
        backend.sleep()
        expect_raises(PlugRLError, partial(backend.generate, PROMPTS, GREEDY, SEEDS), f"{name}: generating asleep")
        backend.wake()
        expect_equal(_tokens(backend.generate(PROMPTS, GREEDY, SEEDS)), before, f"{name}: tokens after sleep and wake")
