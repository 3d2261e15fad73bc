"""The policy that gives a chunk of actions in one pass: acting, recomputing, cloning, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from oft_tiny import CHUNKS, DIM, observations, policy

from plugrl.errors import ConfigError, DataError, UnsupportedCapability
from plugrl_models_openvla.oft_policy import OpenVLAOFTRegressionPolicy
from plugrl_models_openvla.sampling import Sampling

SETTINGS = [{"temperature": 1.6}, {"temperature": 0.7, "top_k": 3}, {"temperature": 1.3, "top_k": 9, "top_p": 0.8}]
VARIANTS = [
    {},
    {"implement_version": "official", "value_type": "chunk_level"},
    {"num_images_in_input": 3, "use_proprio": True, "use_film": True},
    {"num_action_chunks": 1, "attn_implementation": "eager"},
    {"action_dim": 4},
]
IDS = ["plain", "official", "cameras", "one", "repeated"]


@pytest.fixture(scope="module", params=VARIANTS, ids=IDS)
def acting(request: pytest.FixtureRequest):
    """A policy of each variant and its observations; what FiLM does is no longer nothing."""
    found = policy(**request.param)
    if found.parts.config.use_film:
        with torch.no_grad():
            for parameter in found.model.film.parameters():
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return found, observations(cameras=request.param.get("num_images_in_input", 1))


def test_the_first_ratio_is_one(acting) -> None:
    found, obs = acting
    for number, sampling in enumerate(SETTINGS):
        actions, result = found.predict_action_batch(obs, generator=torch.Generator().manual_seed(number), **sampling)
        shape = (3, found.num_action_chunks, found.action_dim)
        rows = result["forward_inputs"]
        assert actions.shape == result["prev_logprobs"].shape == rows["action_tokens"].shape == shape
        # The second part alone has less padding.
        halves = [{key: value[part] for key, value in rows.items()} for part in (slice(0, 2), slice(2, 3))]
        parts = [found(forward_inputs=half, compute_entropy=True, compute_values=True, **sampling) for half in halves]
        again = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        ratio = (again["logprobs"] - result["prev_logprobs"]).exp()
        torch.testing.assert_close(ratio, torch.ones(shape), atol=1e-5, rtol=0)
        torch.testing.assert_close(again["values"], result["prev_values"], atol=1e-5, rtol=0)
        assert (again["entropy"] >= 0).all() and again["entropy"].shape == shape


def test_values_are_one_for_each_action_or_one(acting) -> None:
    found, obs = acting
    outputs = 1 if found.parts.config.value_type == "chunk_level" else found.num_action_chunks
    values = found.predict_values(obs)
    assert values.shape == (3, outputs)
    _, result = found.predict_action_batch(obs, mode="eval")
    torch.testing.assert_close(result["prev_values"], values)
    _, without = found.predict_action_batch(obs, mode="eval", compute_values=False)
    assert not without["prev_values"].any()


def test_every_part_that_is_computed_with_gets_a_gradient(acting) -> None:
    found, obs = acting
    found.zero_grad()
    rows = found.predict_action_batch(obs)[1]["forward_inputs"]
    outputs = found(forward_inputs=rows, compute_values=True)
    (outputs["logprobs"].sum() + outputs["values"].sum()).backward()
    trained = [(name, item.grad) for name, item in found.named_parameters() if item.requires_grad]
    without = [name for name, grad in trained if grad is None or not grad.any()]
    # FiLM has layers for the last blocks too, which nothing is computed with.
    assert all(".film." in name for name in without), without


def test_gradients_agree_with_finite_differences() -> None:
    found = policy(use_proprio=True, num_images_in_input=2, use_film=True)
    _, result = found.predict_action_batch(observations(cameras=2), generator=torch.Generator().manual_seed(0))
    rows = result["forward_inputs"]
    found.double()
    weights = [item for item in found.parameters() if item.requires_grad]

    def score() -> torch.Tensor:
        outputs = found(forward_inputs=rows, compute_entropy=True, compute_values=True, temperature=1.4, top_k=9)
        return outputs["logprobs"].sum() + 0.1 * outputs["entropy"].sum() + outputs["values"].sum()

    slopes = torch.autograd.grad(score(), weights, materialize_grads=True)
    size = torch.stack([slope.norm() for slope in slopes]).norm()
    step, found_scores = 1e-4, []  # norms and values are computed in fp32
    for sign in (1, -2):  # to one side, and then to the other
        with torch.no_grad():
            for item, slope in zip(weights, slopes, strict=True):
                item.add_(slope / size, alpha=sign * step)
            found_scores.append(score())
    assert ((found_scores[0] - found_scores[1]) / (2 * step)).item() == pytest.approx(size.item(), rel=2e-3)


def test_actions_are_those_of_the_tokens_in_the_units_of_the_robot() -> None:
    found = policy()
    actions, result = found.predict_action_batch(observations(), mode="eval")
    normalised = found.parts.tokens.decode(result["forward_inputs"]["action_tokens"])
    torch.testing.assert_close(actions[..., 0], normalised[..., 0] * 2)  # from -2 to 2
    torch.testing.assert_close(actions[..., 1], normalised[..., 1])  # masked
    again, _ = found.predict_action_batch(observations(), mode="eval")
    assert torch.equal(again, actions), "eval takes the likeliest"
    sources = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    drawn = [found.predict_action_batch(observations(), generator=source)[0] for source in sources]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_bounds_are_chosen_by_the_configuration() -> None:
    wide = policy(action_norm="bounds").parts.statistics
    assert wide.low.tolist() == [-3.0, -1.0] and wide.high.tolist() == [3.0, 2.0]


def test_each_camera_and_the_state_of_the_robot_matter() -> None:
    found = policy(num_images_in_input=3, use_proprio=True, use_film=True)
    obs = observations(cameras=3)
    base = found._action_states(found.observe(obs))
    for key in ("main_images", "wrist_images", "extra_view_images", "states"):
        other = {**obs, key: obs[key].flip(0)}
        assert not torch.allclose(found._action_states(found.observe(other)), base), f"{key} has no effect"
    with torch.no_grad():
        found.model.film.fused_featurizer[0].shift.weight.fill_(0.3)
    assert not torch.allclose(found._action_states(found.observe(obs)), base), "FiLM has no effect"
    del found.model.film
    assert torch.equal(found._action_states(found.observe(obs)), base), "a new FiLM changes something"


def test_what_comes_after_is_seen_by_what_comes_before() -> None:
    found = policy()
    inputs = found.observe(observations())
    pixels = found.parts.images.normalise(inputs["pixels"])
    sequences = found.model.sequences(inputs["input_ids"], inputs["attention_mask"], pixels)
    before = found.model.states_of_all(sequences)
    sequences.embeddings[:, -1] += 1.0
    changed = (found.model.states_of_all(sequences) - before).abs().amax(dim=(0, 2))
    assert (changed[sequences.mask.all(dim=0)] > 0).all(), "attention is causal"


def test_padding_changes_nothing() -> None:
    obs, sampling = observations(), Sampling(0.9, 5)
    short, long = policy(), policy(max_prompt_length=20)
    short_ids, short_logprobs, short_values = short._act(short.observe(obs), sampling, torch.Generator().manual_seed(0))
    long_ids, long_logprobs, long_values = long._act(long.observe(obs), sampling, torch.Generator().manual_seed(0))
    assert torch.equal(short_ids, long_ids)
    torch.testing.assert_close(short_logprobs, long_logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(short_values, long_values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", ["discrete", "l1"])
def test_cloning_brings_the_policy_to_what_was_shown(head: str) -> None:
    found = policy(action_head=head, use_proprio=head == "l1")
    obs = observations()
    shown = torch.tensor([[1.5, 1.0], [-1.0, 0.0], [0.2, 1.0]])[:, None].expand(-1, CHUNKS, -1).contiguous()
    inputs = found.sft_inputs(obs, shown)
    optimizer = torch.optim.Adam(found.parameters(), lr=8e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        outputs = found(forward_type="sft", forward_inputs=inputs)
        outputs["losses"].mean().backward()
        optimizer.step()
        losses.append(outputs["losses"].mean().item())
    assert outputs["losses"].shape == (3,) and losses[-1] < losses[0] / 2, losses
    actions, _ = found.predict_action_batch(obs, mode="eval")
    before = (torch.zeros(()) - shown).abs().mean()
    assert (actions - shown).abs().mean() < before / 2 and outputs["metrics"]["action_l1"] < 0.5


@pytest.mark.parametrize("head", ["discrete", "l1"])
def test_steps_that_are_padding_have_no_loss(head: str) -> None:
    found = policy(action_head=head)
    shown = torch.zeros(3, CHUNKS, DIM)
    other = shown.clone()
    other[:, -1] = 1.5
    mask = torch.ones(3, CHUNKS, dtype=torch.bool)
    mask[:, -1] = False
    inputs, changed = found.sft_inputs(observations(), shown), found.sft_inputs(observations(), other)
    losses = [found.sft_forward({**item, "action_mask": mask})["losses"] for item in (inputs, changed)]
    torch.testing.assert_close(*losses)
    assert not torch.allclose(found.sft_forward(changed)["losses"], losses[0])


def test_an_l1_head_gives_numbers_and_refuses_probabilities() -> None:
    found = policy(action_head="l1")
    assert isinstance(found, OpenVLAOFTRegressionPolicy)
    assert found.capabilities() == {"actions", "sft", "values"}
    actions, result = found.predict_action_batch(observations(), temperature=1.0)
    assert actions.shape == (3, CHUNKS, DIM) and result["prev_logprobs"] is None
    outputs = found(forward_inputs=result["forward_inputs"], compute_values=True)
    torch.testing.assert_close(found.parts.statistics.unnormalise(outputs["actions"]), actions)
    torch.testing.assert_close(outputs["values"], result["prev_values"])
    with pytest.raises(UnsupportedCapability, match="action_head=discrete"):
        found(forward_inputs=result["forward_inputs"], compute_logprobs=True)


def test_any_part_can_be_asked_for_alone() -> None:
    found = policy()
    rows = found.predict_action_batch(observations())[1]["forward_inputs"]
    only = found(forward_inputs=rows, compute_logprobs=False, compute_values=True)
    assert set(only) == {"values"}
    assert set(found(forward_inputs=rows, compute_logprobs=False, compute_entropy=True)) == {"entropy"}
    with pytest.raises(UnsupportedCapability, match="add_value_head"):
        policy(add_value_head=False)(forward_inputs=rows, compute_values=True)


@pytest.mark.parametrize(
    "keys, text",
    [
        ({"implement_version": "other"}, "model.implement_version"),
        ({"action_head": "l1", "implement_version": "rlinf"}, "rlinf has no l1 head"),
        ({"value_type": "step_level"}, "model.value_type"),
        ({"proprio_dim": 5}, "proprio_dim: 5 has no effect without use_proprio"),
        ({"use_proprio": True, "proprio_dim": 4}, "model.proprio_dim: 4, but the statistics have 5"),
        ({"use_proprio": True, "norm_stats": {"a": {"action": {"q01": [0], "q99": [1]}}}}, "no statistics of .proprio"),
        ({"unnorm_key": "libero"}, 'no statistics of "libero".*It has: toy'),
        ({"action_dim": 3}, "model.action_dim: 3, but the statistics.*2 numbers"),
        ({"action_norm": "q98"}, "model.action_norm"),
        ({"num_images_in_input": 0}, "model.num_images_in_input"),
        ({"use_flim": True}, "use_flim"),
    ],
)
def test_mistakes_in_the_configuration_are_named(keys: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        policy(**keys)


def test_observations_that_do_not_fit_are_named() -> None:
    found = policy(num_images_in_input=2, use_proprio=True)
    obs = observations(cameras=2)
    with pytest.raises(DataError, match=r"model.num_images_in_input: 2, but the observation has 1 cameras"):
        found.observe({**obs, "wrist_images": None})
    with pytest.raises(DataError, match="has no states"):
        found.observe({**obs, "states": None})
    with pytest.raises(DataError, match=r"states must be \[3, 5\].*not \[3, 4\]"):
        found.observe({**obs, "states": obs["states"][:, :4]})
    with pytest.raises(DataError, match="there are 2 images of a camera for 3"):
        found.observe({**obs, "wrist_images": obs["wrist_images"][:2]})
    with pytest.raises(DataError, match=r"actions must be \[B, 3, 2\]"):
        found.sft_inputs(obs, torch.zeros(3, 2, 2))
    inputs = found.observe(obs)
    tokens = torch.full((3, CHUNKS, DIM), found.parts.tokens.first)
    with pytest.raises(DataError, match="takes 2 images"):
        found(forward_inputs={**inputs, "pixels": inputs["pixels"][:, :3], "action_tokens": tokens})
    with pytest.raises(DataError, match="model.use_proprio: the model takes the state"):
        blind = {key: value for key, value in inputs.items() if key != "proprio"}
        found(forward_inputs={**blind, "action_tokens": tokens})
    with pytest.raises(DataError, match="model.use_proprio.*takes none"):
        plain = policy()
        plain(forward_inputs={**plain.observe(obs), "proprio": inputs["proprio"], "action_tokens": tokens})
