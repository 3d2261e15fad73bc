"""Acting, recomputing what was done, and learning from demonstrations."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny import draws, make_policy, observe

from plugrl.errors import ConfigError, DataError, UnsupportedCapability

SETTINGS = [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.7, 5, 1.0), (0.8, 0, 0.7), (1.3, 6, 0.6), (0.0, 0, 1.0)]


def rows_of(inputs, rows):
    return {name: tensor[rows] for name, tensor in inputs.items()}


# --------------------------------------------------------------------- ratio
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_the_first_ratio_is_one(temperature, top_k, top_p) -> None:
    policy = make_policy(num_action_chunks=2)
    _, result = draws(policy, observe(), temperature, top_k, top_p)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    with torch.no_grad():
        found = policy(forward_inputs=result["forward_inputs"], **sampling)["logprobs"]
    ratio = (found - result["prev_logprobs"]).exp()
    torch.testing.assert_close(ratio, torch.ones(6, 2, 3), atol=1e-5, rtol=0)
    assert (result["prev_logprobs"] <= 0).all() and torch.isfinite(result["prev_logprobs"]).all()


def test_rows_do_not_depend_on_their_batch() -> None:
    """Micro-batches have other padding, since it is cut where all rows have it."""
    policy = make_policy(add_value_head=True)
    _, result = draws(policy, observe(), 0.8, 7)
    inputs = result["forward_inputs"]
    asked = {"temperature": 0.8, "top_k": 7, "compute_values": True, "compute_entropy": True}
    with torch.no_grad():
        together = policy(forward_inputs=inputs, **asked)
        for rows in ([0], [3, 1], [4, 5, 2, 0, 1]):
            alone = policy(forward_inputs=rows_of(inputs, rows), **asked)
            for name, values in alone.items():
                torch.testing.assert_close(values, together[name][rows], atol=1e-5, rtol=0, msg=f"{name} of {rows}")


def test_more_padding_changes_nothing() -> None:
    narrow, wide = make_policy(max_prompt_length=12), make_policy(max_prompt_length=25)
    (actions, short), (same, long) = (draws(policy, observe(), seed=3) for policy in (narrow, wide))
    assert long["forward_inputs"]["input_ids"].shape[1] == 25
    assert torch.equal(actions, same)
    torch.testing.assert_close(short["prev_logprobs"], long["prev_logprobs"], atol=1e-6, rtol=0)


def test_gradients_agree_with_finite_differences() -> None:
    """In double precision, but for Llama's norms, which compute in fp32 in any case."""
    policy = make_policy()
    _, result = draws(policy, observe(3), 0.7)
    policy.double()
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    source = torch.Generator().manual_seed(5)

    def total() -> torch.Tensor:
        found = policy(forward_inputs=result["forward_inputs"], temperature=0.7)["logprobs"]
        return (found * torch.linspace(0.5, 1.5, found.numel()).view(found.shape)).sum()

    gradients = torch.autograd.grad(total(), trained, allow_unused=True)
    assert sum(gradient is None for gradient in gradients) == len(policy.critic_parameters())
    for part in ("vision_backbone", "projector", "language_model"):
        names = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
        step = [torch.randn(tensor.shape, generator=source, dtype=torch.float64) * (part in name)
                for name, tensor in zip(names, trained, strict=True)]  # fmt: skip
        pairs = zip(gradients, step, strict=True)
        slope = sum((gradient * move).sum() for gradient, move in pairs if gradient is not None)
        size, sides = 1e-4, []
        with torch.no_grad():
            for sign in (1, -2):
                for tensor, move in zip(trained, step, strict=True):
                    tensor += sign * size * move
                sides.append(total())
            for tensor, move in zip(trained, step, strict=True):
                tensor += size * move
        difference = (sides[0] - sides[1]) / (2 * size)
        torch.testing.assert_close(slope, difference, rtol=2e-3, atol=1e-4, msg=lambda text, p=part: f"{p}: {text}")


def test_gradient_checkpointing_and_eager_attention_change_no_number() -> None:
    plain = make_policy()
    _, result = draws(plain, observe())
    found = {}
    ways = {"checkpointing": {"enable_gradient_checkpointing": True}, "eager": {"attn_implementation": "eager"}}
    for name, keys in {"plain": {}, **ways}.items():
        policy = make_policy(**keys).train()
        policy(forward_inputs=result["forward_inputs"])["logprobs"].sum().backward()
        found[name] = {key: value.grad for key, value in policy.named_parameters() if value.grad is not None}
    for name in ways:
        assert found[name].keys() == found["plain"].keys()
        for key, gradient in found["plain"].items():
            torch.testing.assert_close(found[name][key], gradient, atol=1e-4, rtol=1e-4, msg=f"{name}: {key}")


# --------------------------------------------------------------------- what is asked for
def test_any_outputs_may_be_asked_for() -> None:
    policy = make_policy()
    _, result = draws(policy, observe(2))
    names = ("logprobs", "entropy", "values")
    for asked in itertools.product((True, False), repeat=3):
        options = {f"compute_{name}": wanted for name, wanted in zip(names, asked, strict=True)}
        with torch.no_grad():
            found = policy(forward_inputs=result["forward_inputs"], **options)
        assert set(found) == {name for name, wanted in zip(names, asked, strict=True) if wanted}


def test_values_are_the_same_on_every_way() -> None:
    policy, obs = make_policy(), observe()
    _, result = draws(policy, obs)
    found = policy(forward_inputs=result["forward_inputs"], compute_values=True)["values"]
    assert found.shape == (6, 1) and found.std() > 0
    torch.testing.assert_close(result["prev_values"], found, atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.predict_values(obs), found, atol=1e-5, rtol=0)


def test_without_a_value_head_values_are_zero_or_refused() -> None:
    policy, obs = make_policy(add_value_head=False), observe(2)
    _, result = draws(policy, obs)
    assert torch.equal(result["prev_values"], torch.zeros(2, 1)) and "values" not in policy.capabilities()
    for call in (lambda: policy.predict_values(obs),
                 lambda: policy(forward_inputs=result["forward_inputs"], compute_values=True)):  # fmt: skip
        with pytest.raises(UnsupportedCapability, match="add_value_head"):
            call()


def test_eval_takes_the_likeliest_and_train_draws_from_the_generator() -> None:
    policy, obs = make_policy(), observe()
    first, again, other = (draws(policy, obs, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    greedy, result = policy.predict_action_batch(obs, "eval")
    assert torch.equal(greedy, policy.predict_action_batch(obs, "eval", generator=torch.Generator())[0])
    ids = result["forward_inputs"]["action_tokens"]
    for row, position in ((0, 0), (4, 2)):
        one = rows_of(result["forward_inputs"], [row])
        every = torch.arange(policy.parts.tokens.first, policy.parts.tokens.limit)
        others = {name: tensor.expand(len(every), *tensor.shape[1:]) for name, tensor in one.items()}
        others["action_tokens"] = others["action_tokens"].clone()
        others["action_tokens"][:, 0, position] = every
        with torch.no_grad():
            found = policy(forward_inputs=others)["logprobs"][:, 0, position]
        assert ids[row, 0, position] == every[found.argmax()]
        torch.testing.assert_close(found.exp().sum(), torch.tensor(1.0))
    assert not torch.equal(greedy, draws(policy, obs, temperature=5.0, mode="eval")[0])


def test_actions_are_in_the_units_of_the_robot() -> None:
    policy = make_policy(num_action_chunks=3)
    actions, _ = draws(policy, observe(40), temperature=3.0)
    assert actions.shape == (40, 3, 3) and actions.dtype == torch.float32
    spread = actions.flatten(0, 1).abs().amax(0)
    assert (spread <= torch.tensor([0.5, 0.75, 1.0])).all() and spread[0] > 0.4 and spread[1] > 0.6


def test_the_policy_sees_its_image_and_reads_its_instruction() -> None:
    policy, obs = make_policy(), observe(2)
    _, result = draws(policy, obs)
    inputs = result["forward_inputs"]
    with torch.no_grad():
        seen = policy(forward_inputs=inputs)["logprobs"]
        blank = policy(forward_inputs={**inputs, "pixels": inputs["pixels"] * 0})["logprobs"]
        swapped = policy(forward_inputs={**inputs, "input_ids": inputs["input_ids"].flip(0),
                                         "attention_mask": inputs["attention_mask"].flip(0)})["logprobs"]  # fmt: skip
    assert (seen - blank).abs().min() > 1e-4 and (seen - swapped).abs().min() > 1e-4


# --------------------------------------------------------------------- demonstrations
def test_cloning_a_few_demonstrations() -> None:
    policy, obs = make_policy(seed=2).train(), observe(4)
    source = torch.Generator().manual_seed(1)
    actions = (torch.rand(4, 1, 3, generator=source) - 0.5) * torch.tensor([1.0, 1.5, 2.0])
    inputs = policy.sft_inputs(obs, actions)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    first = policy(forward_type="sft", forward_inputs=inputs)["losses"].mean().item()
    for _ in range(25):
        found = policy(forward_type="sft", forward_inputs=inputs)
        optimizer.zero_grad()
        found["losses"].mean().backward()
        optimizer.step()
    assert first > 2 and found["losses"].max() < 0.1 and found["metrics"]["token_accuracy"] == 1
    cloned, _ = policy.eval().predict_action_batch(obs, "eval")
    # Half a bin of sixteen; the last number has no scale.
    assert ((cloned - actions).abs() <= torch.tensor([0.5, 0.75, 1.0]) / 15 + 1e-6).all()


def test_padded_steps_of_a_chunk_do_not_count() -> None:
    policy = make_policy(num_action_chunks=2)
    actions = torch.zeros(2, 2, 3)
    mask = torch.tensor([[True, False], [True, True]])
    inputs = {**policy.sft_inputs(observe(2), actions), "action_mask": mask}
    with torch.no_grad():
        found = policy(forward_type="sft", forward_inputs=inputs)
        moved = policy(forward_type="sft", forward_inputs={**inputs, **policy.sft_inputs(
            observe(2), actions + torch.tensor([[[0.0], [0.4]], [[0.0], [0.0]]]))})  # fmt: skip
    assert torch.equal(found["losses"], moved["losses"])
    torch.testing.assert_close(found["losses"][0], -found["logprobs"][0, 0].mean())
    torch.testing.assert_close(found["losses"][1], -found["logprobs"][1].mean())


# --------------------------------------------------------------------- declarations
def test_parts_that_nothing_computes_with_are_frozen() -> None:
    policy = make_policy()
    _, result = draws(policy, observe(2))
    found = policy(forward_inputs=result["forward_inputs"], compute_values=True)
    (found["logprobs"].sum() + found["values"].sum()).backward()
    for name, parameter in policy.named_parameters():
        unused = any(part in name for part in (".blocks.2.", ".attn_pool.", "featurizer.norm."))
        assert parameter.requires_grad != unused, name
        assert (parameter.grad is None) == unused, name
    classes = {type(module).__name__ for module in policy.modules()}
    assert set(policy.wrap_units()) <= classes
    assert {name.split(".")[1] for name in policy.critic_parameters()} == {"value_head"}


# --------------------------------------------------------------------- bad input
def test_wrong_observations_are_named() -> None:
    policy, obs = make_policy(), observe(2)
    images, tasks = obs["main_images"], obs["task_descriptions"]
    for wrong, error, words in (
        ({"task_descriptions": tasks}, DataError, "main_images"),
        ({"main_images": images}, DataError, "task_descriptions"),
        ({**obs, "main_images": images[:1]}, DataError, "1 main_images for 2"),
        ({**obs, "main_images": images.float()}, DataError, "uint8"),
        ({**obs, "main_images": images[..., :2]}, DataError, "uint8"),
        ({**obs, "task_descriptions": ["push the cup"] * 2}, DataError, "push the cup"),
        ({**obs, "task_descriptions": ["push the red block " * 4] * 2}, ConfigError, "max_prompt_length"),
    ):
        with pytest.raises(error, match=words):
            policy.predict_action_batch(wrong)
    with pytest.raises(ConfigError, match="neither train nor eval"):
        policy.predict_action_batch(obs, "test")
    with pytest.raises(DataError, match=r"\[B, 1, 3\]"):
        policy.sft_inputs(obs, torch.zeros(2, 1, 4))
    with pytest.raises(DataError, match="16 pixels a side"):
        policy.model.embed_images(torch.zeros(1, 6, 24, 24))
