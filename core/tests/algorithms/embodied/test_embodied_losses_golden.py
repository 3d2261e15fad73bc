"""Reference values and gradients of the losses of policies that act (section 5.5)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms.divergence import kl  # noqa: E402
from plugrl.algorithms.embodied import (  # noqa: E402
    Averaging,
    ExplainedVariance,
    Moments,
    at_level,
    check_log_probs,
    embodied_objective,
    filter_rewards,
    get_embodied_loss,
    permutation,
    register_embodied_loss,
    standardise,
)
from plugrl.algorithms.embodied.decoupled import decoupled_actor  # noqa: E402
from plugrl.algorithms.embodied.losses import actor, actor_critic, critic  # noqa: E402
from plugrl.algorithms.registry import losses  # noqa: E402
from plugrl.metric import Metric  # noqa: E402
from plugrl.testing.reference import Case, cases  # noqa: E402

WORDS = {"inf": torch.inf, "-inf": -torch.inf, "nan": torch.nan}
TENSORS = {
    "logprobs": "log_probs",
    "old_logprobs": "old_log_probs",
    "proximal_logprobs": "proximal_log_probs",
    "prev_values": "old_values",
    "advantages": "advantages",
    "values": "values",
    "returns": "returns",
    "versions": "versions",
}
OPTIONS = {
    "clip_low": "clip_low",
    "clip_high": "clip_high",
    "clip_c": "clip_dual",
    "log_ratio_min": "log_ratio_min",
    "log_ratio_max": "log_ratio_max",
    "value_clip": "value_clip",
    "huber_delta": "huber_delta",
    "critic_warmup": "critic_warmup",
    "current_version": "current_version",
    "behave_weight_threshold": "behave_weight_threshold",
}
METRICS = {
    "actor/policy_loss": "actor/pg_loss",
    "actor/approx_kl": "actor/ppo_kl",
    "actor/clip_fraction": "actor/pg_clipfrac",
    "actor/dual_clip_fraction": "actor/pg_clipfrac_lower",
}


def floats(values):
    plain = [WORDS.get(value, value) if isinstance(value, str) else value for value in values]
    return torch.tensor(plain, dtype=torch.float32)


def arguments(given):
    """The keywords of a case under the names they have here."""
    found = {name: floats(given[key]) for key, name in TENSORS.items() if key in given}
    found |= {name: given[key] for key, name in OPTIONS.items() if key in given}
    found["mask"] = torch.tensor(given["mask"], dtype=torch.bool) if given.get("mask") is not None else None
    sums = floats(given["mask_sum"]) if "mask_sum" in given else None
    return found, Averaging(mask_sum=sums, max_episode_steps=given.get("max_steps"))


def upstream_names(loss, metrics):
    metrics = {"actor/pg_loss": loss, **metrics}
    return {**metrics, **{theirs: metrics[ours] for theirs, ours in METRICS.items() if ours in metrics}, "loss": loss}


@pytest.mark.parametrize("case", [*cases("ppo_actor"), *cases("actor_critic"), *cases("decoupled")])
def test_policy_losses(case: Case) -> None:
    given, mean = arguments(case.given)
    function = {"ppo_actor": actor, "actor_critic": actor_critic, "decoupled": decoupled_actor}[case.op]
    with case.outcome():
        case.check(upstream_names(*function(**given, mean=mean)))


@pytest.mark.parametrize("case", cases("ppo_actor_grad"))
def test_gradients_of_the_policy_loss(case: Case) -> None:
    given, mean = arguments(case.given)
    given["log_probs"].requires_grad_()
    loss, metrics = actor(**given, mean=mean)
    loss.backward()
    case.check({**upstream_names(loss, metrics), "grad": given["log_probs"].grad})


@pytest.mark.parametrize("case", cases("embodied_policy_loss"))
def test_levels_of_the_policy_loss(case: Case) -> None:
    given, mean = arguments(case.given)
    loss, metrics = embodied_objective(
        given.pop("log_probs"),
        given.pop("old_log_probs"),
        given.pop("advantages"),
        given.pop("mask"),
        loss_type="actor",
        logprob_type=case.given["logprob_type"],
        action_dim=case.given["action_dim"],
        mask_sum=mean.mask_sum,
        max_episode_steps=mean.max_episode_steps,
        **given,
    )
    case.check(upstream_names(loss, metrics))


@pytest.mark.parametrize("case", cases("ppo_critic"))
def test_critic(case: Case) -> None:
    given, mean = arguments(case.given)
    loss, metrics = critic(**given, mean=mean)
    case.check({"loss": loss, **metrics})


@pytest.mark.parametrize("case", cases("kl"))
def test_divergences(case: Case) -> None:
    with case.outcome():
        case.check({"kl": kl(floats(case.given["logprob"]), floats(case.given["ref_logprob"]), case.given["kind"])})


@pytest.mark.parametrize("case", cases("entropy"))
def test_entropy(case: Case) -> None:
    given = case.given
    mask = None if given["mask"] is None else torch.tensor(given["mask"], dtype=torch.bool)
    value = Averaging().plain(at_level(floats(given["entropy"]), given["kind"], given.get("action_dim", 1)), mask)
    case.check({"entropy": value})


@pytest.mark.parametrize("case", cases("microbatch_grad"))
def test_no_split_into_micro_batches_changes_anything(case: Case) -> None:
    given, _ = arguments(case.given)
    mask = given.pop("mask")
    for split in case.given["splits"]:
        new = given["log_probs"].clone().requires_grad_()
        mean = Averaging(batch_num_tokens=int(mask.sum()))
        total = 0.0
        for rows in torch.arange(len(new)).split(split):
            parts = {name: value[rows] for name, value in given.items() if isinstance(value, torch.Tensor)}
            parts["log_probs"] = new[rows]
            loss, _ = actor(**{**given, **parts}, mask=mask[rows], mean=mean)
            loss.backward()
            total += loss.item()
        case.check({"loss": total, "grad": new.grad})


@pytest.mark.parametrize("case", cases("metric_mean"))
def test_means_of_metrics_are_weighted(case: Case) -> None:
    pairs = zip(case.given["values"], case.given["counts"], strict=True)
    case.check({"mean": Metric.merge([Metric(value, "mean", count) for value, count in pairs]).value})


@pytest.mark.parametrize("case", cases("explained_variance"))
def test_explained_variance(case: Case) -> None:
    total = ExplainedVariance()
    for shard in case.given["shards"]:
        total += ExplainedVariance.of(floats(shard["returns"]), floats(shard["values"]))
    case.check({"explained_variance": total.value})


@pytest.mark.parametrize("case", cases("policy_loss_lookup"))
def test_case_of_a_loss_does_not_matter(case: Case) -> None:
    def mine(log_probs, old_log_probs, advantages, mask, *, mean):
        return mean(log_probs, mask), {}

    with losses.temporary():
        register_embodied_loss(case.given["registered"])(mine)
        found = get_embodied_loss(case.given["lookup"]).__wrapped__ is mine
        case.check({"found": found})


def loop_case(name: str) -> list:
    return [found for found in cases("loop") if found.values[0] is None or found.values[0].id == f"emb.loop.{name}.1"]


@pytest.mark.parametrize("case", loop_case("shuffle"))
def test_every_step_and_epoch_has_its_own_order(case: Case) -> None:
    given = case.given
    orders = [
        tuple(permutation(given["n"], seed=given["seed"], step=step, epoch=epoch).tolist())
        for step in given["global_steps"]
        for epoch in range(given["update_epochs"])
    ]
    assert all(sorted(order) == list(range(given["n"])) for order in orders)
    case.check({"distinct_permutations": len(set(orders))})
    assert permutation(9, seed=1, step=2, epoch=3).tolist() == permutation(9, seed=1, step=2, epoch=3).tolist()


@pytest.mark.parametrize("case", loop_case("global_norm"))
def test_statistics_run_over_all_ranks(case: Case) -> None:
    parts = [floats(rank) for rank in case.given["rank_advantages"]]
    total = sum((Moments.of(part) for part in parts), Moments())
    case.check({"normalised": [standardise(part, total) for part in parts]})


@pytest.mark.parametrize("case", loop_case("entropy_split"))
def test_the_entropy_bonus_does_not_scale_with_micro_batches(case: Case) -> None:
    entropy, mask = floats(case.given["entropy"]).unsqueeze(1), torch.tensor(case.given["mask"]).bool().unsqueeze(1)
    zero = torch.zeros(4, 1)
    for split in case.given["splits"]:
        total = 0.0
        for rows in torch.arange(4).split(split):
            loss, _ = embodied_objective(
                zero[rows],
                zero[rows],
                zero[rows],
                mask[rows],
                loss_type="actor",
                entropy=entropy[rows],
                entropy_coeff=case.given["bonus"],
                batch_num_tokens=4,
            )
            total += loss.item()
        case.check({"term": total})


@pytest.mark.parametrize("case", loop_case("logprob_sign"))
def test_probabilities_above_one_are_refused(case: Case) -> None:
    with case.outcome():
        check_log_probs(torch.tensor([[-0.5, case.given["logprob"]]]))
    check_log_probs(torch.tensor([[-0.5, case.given["logprob"]]]), torch.tensor([[True, False]]))
    with pytest.raises(ValueError, match="inf"):
        check_log_probs(torch.tensor([[torch.nan]]))


@pytest.mark.parametrize("case", loop_case("all_filtered"))
def test_nothing_is_left_where_all_groups_are_filtered(case: Case) -> None:
    rewards = floats(case.given["group_means"]).reshape(1, 1, 1).expand(1, 2, 1)
    mask = filter_rewards(rewards, group_size=2, lower=case.given["lower"], upper=case.given["upper"])
    case.check({"optimizer_steps": int(mask.any())})
