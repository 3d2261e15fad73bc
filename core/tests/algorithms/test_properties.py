"""What must hold for every batch: masked garbage stays out, and neither split, padding nor ranks change a loss."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from plugrl.algorithms import (  # noqa: E402
    actor_objective,
    advantages,
    aggregate,
    get_advantage,
    get_policy_loss,
    losses,
    place_rewards,
    value_loss,
)
from plugrl.algorithms.aggregation import MODES  # noqa: E402
from plugrl.algorithms.registry import EMBODIED  # noqa: E402

NAN = float("nan")
DEPENDS_ON_SPLIT = {"clip_cov", "kl_cov"}
TEXT_LOSSES = {name for name in losses.keys() if not name.startswith(EMBODIED)}
TEXT_ADVANTAGES = {name for name in advantages.keys() if not name.startswith(EMBODIED)}
FIXED_AGGREGATION = {"gspo", "sapo", "geo_mean"}
few = settings(max_examples=10, deadline=None)


def random_batch(seed, rows=6, width=5, dtype=torch.float64):
    """New, old and reference log-probabilities, advantages, entropy, weights and a mask with holes and an empty row."""
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return torch.rand(rows, width, generator=generator, dtype=dtype)

    mask = draw() > 0.3
    mask[seed % rows] = False
    mask[(seed + 1) % rows, 0] = True
    old = -2 * draw()
    new = (old + draw() - 0.5).clamp(max=-1e-3)
    return {"new": new, "old": old, "ref": -2 * draw(), "gain": 4 * draw() - 2, "mask": mask, "weight": 2 * draw()}


def objective(batch, mode, aggregation, **counts):
    options = {"dro": {"dro_beta": 0.1}}.get(mode, {})
    return actor_objective(
        batch["new"],
        batch["old"],
        batch["gain"],
        batch["mask"],
        clip_low=0.2,
        clip_high=0.28,
        clip_dual=3.0,
        loss_mode=mode,
        loss_options=options,
        aggregation=aggregation,
        entropy=batch["weight"],
        entropy_coeff=0.01,
        ref_log_probs=batch["ref"],
        kl_loss_coef=0.1,
        kl_loss_type="k3+",
        rollout_is_weights=batch["weight"],
        **counts,
    )[0]


def loss_and_gradient(batch, mode, aggregation, **counts):
    new = batch["new"].clone().requires_grad_()
    loss = objective({**batch, "new": new}, mode, aggregation, **counts)
    loss.backward()
    return loss.detach(), new.grad


def global_counts(mask):
    return {"batch_num_tokens": int(mask.sum()), "global_batch_size": int(mask.any(1).sum())}


@pytest.mark.parametrize("aggregation", MODES)
@pytest.mark.parametrize("mode", sorted(TEXT_LOSSES - DEPENDS_ON_SPLIT))
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(1, 5), max_size=3), ranks=st.sampled_from([1, 2, 4]))
@settings(max_examples=5, deadline=None)
def test_split_and_ranks_do_not_change_loss_or_gradient(mode, aggregation, seed, cuts, ranks):
    batch = random_batch(seed)
    counts = {**global_counts(batch["mask"]), "loss_scale_factor": 7.0}
    whole, gradient = loss_and_gradient(batch, mode, aggregation, **counts)
    edges = [0, *sorted(set(cuts)), 6]
    total, pieces = torch.zeros(()), []
    for start, stop in zip(edges, edges[1:], strict=False):
        part = {name: tensor[start:stop] for name, tensor in batch.items()}
        loss, piece = loss_and_gradient(part, mode, aggregation, dp_size=ranks, **counts)
        total = total + loss / ranks
        pieces.append(piece / ranks)
    torch.testing.assert_close(total.double(), whole)
    torch.testing.assert_close(torch.cat(pieces), gradient)


@pytest.mark.parametrize("mode", sorted(TEXT_LOSSES))
@given(seed=st.integers(0, 10**6), extra=st.integers(1, 3))
@few
def test_padding_and_garbage_do_not_change_loss_or_gradient(mode, seed, extra):
    batch = random_batch(seed)
    aggregation = MODES[seed % len(MODES)]
    counts = {"loss_scale_factor": 7.0}
    torch.manual_seed(seed)
    whole, gradient = loss_and_gradient(batch, mode, aggregation, **counts)
    wide = {name: torch.nn.functional.pad(tensor, (0, extra)) for name, tensor in batch.items()}
    for name in ("new", "old", "ref", "gain", "weight"):
        garbage = [NAN, float("-inf"), float("inf"), 1e30][seed % 4]
        wide[name] = torch.where(wide["mask"], wide[name], garbage)
    torch.manual_seed(seed)
    loss, padded = loss_and_gradient(wide, mode, aggregation, **counts)
    if mode not in DEPENDS_ON_SPLIT - {"kl_cov"}:  # the random choice of clip_cov sees other positions
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(padded[:, : gradient.shape[1]], gradient)
    assert loss.isfinite()
    assert not padded[~wide["mask"]].any()


@pytest.mark.parametrize("aggregation", MODES)
@given(seed=st.integers(0, 10**6), ranks=st.sampled_from([1, 2, 4]))
@few
def test_value_loss_does_not_depend_on_split_padding_or_ranks(aggregation, seed, ranks):
    batch = random_batch(seed)
    counts = {**global_counts(batch["mask"]), "loss_scale_factor": 3.0}

    def evaluate(part, **more):
        return value_loss(
            part["new"], part["old"], part["ref"], part["mask"], aggregation=aggregation, **counts, **more
        )

    whole, metrics = evaluate(batch)
    part = [evaluate({k: v[rows] for k, v in batch.items()}, dp_size=ranks)[0] for rows in (slice(0, 2), slice(2, 6))]
    torch.testing.assert_close(sum(part) / ranks, whole)
    dirty = {k: v if k == "mask" else torch.where(batch["mask"], v, NAN) for k, v in batch.items()}
    loss, dirty_metrics = evaluate(dirty)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(dirty_metrics, metrics)


@given(seed=st.integers(0, 10**6), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@few
def test_aggregate_of_ones_counts(seed, dtype):
    mask = random_batch(seed)["mask"]
    ones = torch.ones(mask.shape, dtype=dtype)
    assert aggregate(ones, mask, "token-mean").item() == 1
    assert aggregate(ones, mask, "seq-mean-token-mean").item() == 1
    assert aggregate(ones.float(), mask, "token-sum").item() == int(mask.sum())


def advantage_inputs(seed, rows=8, width=6):
    batch = random_batch(seed, rows, width, torch.float32)
    ids = [f"prompt {index % (rows // 2)}" for index in range(rows)]
    generator = torch.Generator().manual_seed(seed + 1)
    scores = torch.rand(rows, generator=generator)
    keywords = {
        "group_ids": ids,
        "values": batch["ref"],
        "baselines": torch.rand(rows, generator=generator),
        "gamma": 0.9,
        "lam": 0.8,
    }
    return place_rewards(scores, batch["mask"]), batch, keywords


def options_of(name, batch):
    if "token_baseline" in name:
        return {"old_log_probs": batch["old"], "sum_pi_squared": batch["weight"]}
    if name == "gdpo":
        rows = batch["mask"].shape[0]
        return {"reward_components": {"a": list(range(rows)), "b": [1, 0] * (rows // 2)}}
    return {}


@pytest.mark.parametrize("name", sorted(TEXT_ADVANTAGES))
@given(seed=st.integers(0, 10**6))
@few
def test_advantages_are_zero_where_masked_and_ignore_what_stands_there(name, seed):
    rewards, batch, keywords = advantage_inputs(seed)
    mask = batch["mask"]
    clean = get_advantage(name)(rewards, mask, **keywords, **options_of(name, batch))
    dirty_batch = {k: v if k == "mask" else torch.where(mask, v, NAN) for k, v in batch.items()}
    keywords = {**keywords, "values": dirty_batch["ref"]}
    dirty = get_advantage(name)(
        torch.where(mask, rewards, NAN), mask.long(), **keywords, **options_of(name, dirty_batch)
    )
    for first, second in zip(clean, dirty, strict=True):
        assert first.shape == mask.shape
        assert not first[~mask].any()
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize(("name", "other"), [("grpo", "grpo_vectorized"), ("rloo", "rloo_vectorized")])
@given(seed=st.integers(0, 10**6))
@few
def test_vectorised_variants_agree_with_a_loop_over_groups(name, other, seed):
    rewards, batch, keywords = advantage_inputs(seed)
    got, _ = get_advantage(name)(rewards, batch["mask"], **keywords)
    torch.testing.assert_close(get_advantage(other)(rewards, batch["mask"], **keywords)[0], got, rtol=1e-5, atol=1e-5)
    scores, ids = rewards.sum(1), keywords["group_ids"]
    for row, prompt in enumerate(ids):
        group = torch.stack([scores[index] for index, name_ in enumerate(ids) if name_ == prompt])
        centred = scores[row] - group.mean()
        wanted = centred / (group.std() + 1e-6) if name == "grpo" else centred * len(group) / (len(group) - 1)
        torch.testing.assert_close(got[row], wanted * batch["mask"][row], rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 10**6))
@few
def test_group_ids_may_be_any_hashables_a_tensor_or_interleaved(seed):
    rewards, batch, keywords = advantage_inputs(seed)
    wanted, _ = get_advantage("grpo")(rewards, batch["mask"], group_ids=keywords["group_ids"])
    for ids in (torch.tensor([3, 1, 9, 7] * 2), [("a", index % 4) for index in range(8)], "abcdabcd"):
        got, _ = get_advantage("grpo")(rewards, batch["mask"], group_ids=ids)
        assert torch.equal(got, wanted)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    shuffled = [keywords["group_ids"][index] for index in order]
    got, _ = get_advantage("grpo")(rewards[order], batch["mask"][order], group_ids=shuffled)
    torch.testing.assert_close(got, wanted[order])


@given(seed=st.integers(0, 10**6), gamma=st.sampled_from([0.5, 1.0]))
@few
def test_observations_between_tokens_do_not_change_returns(seed, gamma):
    rewards = torch.rand(3, 4, generator=torch.Generator().manual_seed(seed))
    spread, mask = torch.full((3, 8), NAN), torch.zeros(3, 8)
    columns = [0, 3, 4, 6]
    spread[:, columns], mask[:, columns] = rewards, 1.0
    estimate = get_advantage("reinforce_plus_plus")
    _, dense = estimate(rewards, torch.ones(3, 4), gamma=gamma)
    _, sparse = estimate(spread, mask, gamma=gamma)
    torch.testing.assert_close(sparse[:, columns], dense)
    assert not sparse[mask == 0].any()


@pytest.mark.parametrize("name", ["grpo", "gdpo", "rloo", "gpg", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 100.1, -7.7])
def test_equal_rewards_give_no_advantage(name, reward):
    """Not even a little: the mean of equal numbers may round to another one, and 0 / 0 must not become 1."""
    rewards, mask = torch.zeros(7, 4), torch.ones(7, 4)
    rewards[:, -1] = reward
    options = {"reward_components": {"a": [reward] * 7}} if name == "gdpo" else {}
    advantages, _ = get_advantage(name)(rewards, mask, group_ids=[0] * 7, **options)
    assert advantages.abs().max() == 0


def test_returns_skip_observations():
    rewards, mask = torch.tensor([[0.0, 0, 0, 0, 2]]), torch.tensor([[1, 1, 0, 0, 1]])
    _, returns = get_advantage("reinforce_plus_plus")(rewards, mask, gamma=0.5)
    assert returns.tolist() == [[0.5, 1, 0, 0, 2]]


@pytest.mark.parametrize("mode", sorted(FIXED_AGGREGATION))
def test_methods_with_their_own_aggregation_ignore_the_mode(mode):
    batch = random_batch(5)
    call = get_policy_loss(mode)
    tensors = (batch["new"], batch["old"], batch["gain"], batch["mask"])
    first, _ = call(*tensors, clip_low=0.2, clip_high=0.2, aggregation="token-mean")
    second, _ = call(*tensors, clip_low=0.2, clip_high=0.2, aggregation="seq-mean-token-mean")
    assert torch.equal(first, second)
