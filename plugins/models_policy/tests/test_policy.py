"""The policies: what they draw, what they recompute, what they save, and what they say of mistakes."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from plugrl.errors import ConfigError, UnsupportedCapability, UserError
from plugrl_models_policy.config import CnnPolicyConfig, MlpPolicyConfig
from plugrl_models_policy.policy import build_cnn_policy, build_mlp_policy


def mlp(**keys):
    return build_mlp_policy(
        {"state_dim": 5, "action_dim": 3, "hidden_sizes": (8,), "add_value_head": True, **keys}, torch.float32
    )


def cnn(**keys):
    section = {"image_shape": (16, 16), "action_dim": 2, "hidden_sizes": (8,), "channels": (4, 4), **keys}
    return build_cnn_policy(section, torch.float32)


def observation(rows: int = 6, states: int = 5, size: int = 16) -> dict:
    source = torch.Generator().manual_seed(1)
    return {
        "states": torch.randn(rows, states, generator=source),
        "main_images": torch.randint(0, 256, (rows, size, size, 3), dtype=torch.uint8, generator=source),
        "task_descriptions": ["reach"] * rows,
    }


POLICIES = {
    "gaussian": lambda: mlp(num_action_chunks=2),
    "dependent": lambda: mlp(std="dependent"),
    "discrete": lambda: mlp(head="discrete", num_bins=7, num_action_chunks=2),
    "images": lambda: cnn(add_value_head=True),
    "images and states": lambda: cnn(add_value_head=True, state_dim=5, head="discrete"),
}


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("limits", [{}, {"temperature": 0.6, "top_k": 3, "top_p": 0.8}])
def test_the_first_ratio_is_one(kind, limits) -> None:
    policy = POLICIES[kind]()
    actions, result = policy.predict_action_batch(observation(), generator=torch.Generator().manual_seed(2), **limits)
    shape = (6, policy.config.num_action_chunks, policy.config.action_dim)
    assert actions.shape == shape and actions.dtype == torch.float32
    assert result["prev_values"].shape == (6, 1)
    again = policy(
        forward_inputs=result["forward_inputs"], compute_entropy=True, compute_values=True, **limits
    )
    ratio = (again["logprobs"] - result["prev_logprobs"]).exp()
    torch.testing.assert_close(ratio, torch.ones(shape), atol=1e-6, rtol=0)
    torch.testing.assert_close(again["values"], result["prev_values"])
    assert again["entropy"].shape == shape
    again["logprobs"].sum().backward()
    assert any(item.grad is not None and item.grad.abs().sum() > 0 for item in policy.parameters())


@pytest.mark.parametrize("kind", ["gaussian", "discrete"])
def test_draws_follow_the_generator_alone_and_lie_within_the_bounds(kind) -> None:
    policy = mlp(head=kind, init_std=3.0, action_low=-0.5, action_high=(1.0, 2.0, 3.0))
    obs = observation(400)
    draws = [policy.predict_action_batch(obs, generator=torch.Generator().manual_seed(4))[0] for _ in range(2)]
    assert torch.equal(*draws)
    assert draws[0].min() >= -0.5 and torch.all(draws[0].amax((0, 1)) <= torch.tensor([1.0, 2.0, 3.0]))
    greedy = policy.predict_action_batch(obs, mode="eval")[0]
    assert torch.equal(greedy, policy.predict_action_batch(obs, temperature=0.0)[0])
    assert not torch.equal(greedy, draws[0])


def test_gaussian_numbers_are_those_of_torch() -> None:
    policy = mlp(init_std=0.7)
    with torch.no_grad():
        policy.head.mean.bias.uniform_(-1, 1)
    choice = torch.randn(6, 1, 3)
    inputs = {"states": observation()["states"], "choice": choice}
    outputs = policy(forward_inputs=inputs, compute_entropy=True, temperature=0.5)
    mean = policy.head.mode(policy.actor(policy.features(inputs)))
    wanted = torch.distributions.Normal(mean, 0.35)
    torch.testing.assert_close(outputs["logprobs"], wanted.log_prob(choice))
    torch.testing.assert_close(outputs["entropy"], wanted.entropy())


def test_discrete_numbers_are_those_of_torch_and_draws_have_their_frequencies() -> None:
    policy = mlp(head="discrete", num_bins=4, action_dim=1)
    with torch.no_grad():
        policy.head.logits.bias.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
        policy.head.logits.weight.zero_()
    obs = observation(20000)
    _, result = policy.predict_action_batch(obs, generator=torch.Generator().manual_seed(0))
    bins = result["forward_inputs"]["choice"].flatten()
    wanted = torch.distributions.Categorical(logits=policy.head.logits.bias)
    frequencies = torch.bincount(bins, minlength=4) / len(bins)
    torch.testing.assert_close(frequencies, wanted.probs.detach(), atol=0.02, rtol=0)
    torch.testing.assert_close(result["prev_logprobs"].flatten(), wanted.log_prob(bins).detach())
    outputs = policy(forward_inputs=result["forward_inputs"], compute_entropy=True)
    torch.testing.assert_close(outputs["entropy"][0, 0, 0], wanted.entropy())
    # The most likely bin alone holds 0.64, and top_p = 0.5 rules out all others.
    _, narrow = policy.predict_action_batch(obs, top_p=0.5)
    assert set(narrow["forward_inputs"]["choice"].flatten().tolist()) == {2}
    assert narrow["prev_logprobs"].abs().max() == 0
    _, two = policy.predict_action_batch(obs, top_k=2)
    assert set(two["forward_inputs"]["choice"].flatten().tolist()) == {1, 2}


def test_bins_are_spread_from_end_to_end() -> None:
    policy = mlp(head="discrete", num_bins=3, action_low=-2.0, action_high=4.0)
    centres = policy.head.actions(torch.tensor([0, 1, 2]).reshape(3, 1, 1).expand(3, 1, 3))
    assert centres[:, 0, 0].tolist() == [-2.0, 1.0, 4.0]


def test_supervised_training_imitates_and_leaves_padding_out() -> None:
    policy = mlp(num_action_chunks=2, add_value_head=False)
    states = observation(32)["states"]
    target = torch.stack((states[:, :3].tanh(), states[:, 1:4].tanh()), 1)
    batch = {"observation.state": states, "action": target, "action_is_pad": torch.zeros(32, 2, dtype=torch.bool)}
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    first = policy(forward_type="sft", forward_inputs=batch)["losses"].mean()
    for _ in range(200):
        optimizer.zero_grad()
        loss = policy(forward_type="sft", forward_inputs=batch)["losses"].mean()
        loss.backward()
        optimizer.step()
    assert loss < first / 20
    spoiled = target.clone()
    spoiled[:, 1] = 1e6
    padded = {**batch, "action": spoiled, "action_is_pad": torch.tensor([[False, True]]).expand(32, 2)}
    assert policy(forward_type="sft", forward_inputs=padded)["losses"].max() < 1
    with pytest.raises(ConfigError, match=r"demonstrations have \(3, 3\)"):
        policy(forward_type="sft", forward_inputs={**batch, "action": torch.zeros(32, 3, 3)})


@pytest.mark.parametrize("kind", POLICIES)
def test_a_saved_policy_is_the_same_when_it_is_loaded(kind, tmp_path) -> None:
    policy = POLICIES[kind]()
    if kind != "images":
        policy.set_statistics(torch.arange(5.0), torch.full((5,), 2.0))
    policy.save_pretrained(tmp_path, policy.state_dict())
    other = type(policy.config)(**{**policy.config.model_dump(), "path": str(tmp_path), "seed": 9})
    build = build_cnn_policy if isinstance(policy.config, CnnPolicyConfig) else build_mlp_policy
    loaded = build(other, torch.float32)
    for name, value in policy.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    first, second = (item.predict_action_batch(observation(), mode="eval")[0] for item in (policy, loaded))
    assert torch.equal(first, second)


def test_a_value_head_may_be_new_and_another_shape_is_named(tmp_path) -> None:
    cloned = mlp(add_value_head=False)
    cloned.save_pretrained(tmp_path, cloned.state_dict())
    policy = mlp(path=str(tmp_path), seed=5)
    assert torch.equal(policy.head.mean.weight, cloned.head.mean.weight)
    assert policy.predict_values(observation()).shape == (6, 1)
    with pytest.raises(ConfigError, match=r"model.hidden_sizes: \[9\].*\[8\]"):
        mlp(path=str(tmp_path), hidden_sizes=(9,))
    with pytest.raises(ConfigError, match="no folder of a mlp_policy"):
        mlp(path=str(tmp_path / "nothing"))
    with pytest.raises(UnsupportedCapability, match="model.add_value_head"):
        cloned.predict_values(observation())


def test_random_weights_follow_the_seed_alone() -> None:
    first, _, second = mlp(seed=1), torch.rand(3), mlp(seed=1)
    assert torch.equal(first.actor[0].linear.weight, second.actor[0].linear.weight)
    assert not torch.equal(first.actor[0].linear.weight, mlp(seed=2).actor[0].linear.weight)


def test_units_and_critic_parameters_are_named() -> None:
    policy = mlp()
    assert {type(module).__name__ for module in policy.modules()} >= set(policy.wrap_units())
    assert set(policy.critic_parameters()) == {
        name for name, _ in policy.named_parameters() if name.startswith("value_head.")
    }
    assert policy.critic_parameters()
    assert "values" not in mlp(add_value_head=False).capabilities()


@pytest.mark.parametrize(
    ("policy", "obs", "words"),
    [
        (mlp, {"main_images": torch.zeros(1)}, "needs the field 'states'; the environment gives main_images"),
        (mlp, {"states": torch.zeros(2, 4)}, r"model.state_dim: 5.*\(2, 4\)"),
        (cnn, {"main_images": torch.zeros(2, 8, 8, 3, dtype=torch.uint8)}, r"model.image_shape: \[16, 16\]"),
    ],
)
def test_observations_that_do_not_fit_are_explained(policy, obs, words) -> None:
    with pytest.raises(UserError, match=words):
        policy().predict_action_batch(obs)


@pytest.mark.parametrize(
    ("schema", "keys", "words"),
    [
        (MlpPolicyConfig, {"action_dim": 2}, "state_dim"),
        (MlpPolicyConfig, {"state_dim": 2, "action_dim": 2, "hidden": 3}, "hidden"),
        (MlpPolicyConfig, {"state_dim": 2, "action_dim": 2, "action_low": (0.0,)}, "action_low has 1 numbers"),
        (MlpPolicyConfig, {"state_dim": 2, "action_dim": 2, "action_low": 1.0}, "must be less than"),
        (CnnPolicyConfig, {"image_shape": (4, 4), "action_dim": 2}, "too small for 3 convolutions"),
    ],
)
def test_wrong_configurations_say_what_is_wrong(schema, keys, words) -> None:
    with pytest.raises(ValueError, match=words):
        schema(**keys)


def test_manifest_and_schema_import_nothing_heavy() -> None:
    code = (
        "import sys, plugrl_models_policy.plugin, plugrl_models_policy.config;"
        "print([name for name in ('torch', 'numpy', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_policy_learns_a_bandit_with_its_own_gradients() -> None:
    """Log-probabilities raise what is rewarded: the mean moves to the best action."""
    policy = mlp(action_dim=1, init_std=0.5)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(0)
    obs = {"states": torch.ones(256, 5)}
    for _ in range(60):
        actions, result = policy.predict_action_batch(obs, generator=generator)
        reward = -(actions.flatten() - 0.6).square()
        outputs = policy(forward_inputs=result["forward_inputs"])
        loss = -((reward - reward.mean()) / reward.std() * outputs["logprobs"].flatten()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert math.isclose(float(policy.predict_action_batch(obs, mode="eval")[0][0]), 0.6, abs_tol=0.1)


def test_only_what_is_asked_for_is_computed() -> None:
    policy = mlp()
    _, result = policy.predict_action_batch(observation(), compute_values=False)
    assert result["prev_values"] is None
    for asked in ("logprobs", "entropy", "values"):
        flags = {f"compute_{name}": name == asked for name in ("logprobs", "entropy", "values")}
        assert set(policy(forward_inputs=result["forward_inputs"], **flags)) == {asked}
