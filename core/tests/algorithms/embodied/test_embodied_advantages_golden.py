"""Reference values of advantages, masks and rewards of policies that act (section 5.4 and 5.6)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms.embodied import (  # noqa: E402
    bootstrap_rewards,
    episode_scores,
    estimate,
    filter_rewards,
    get_embodied_advantage,
    loss_mask,
    merge_epochs,
)
from plugrl.algorithms.registry import advantages  # noqa: E402
from plugrl.testing.reference import Case, cases  # noqa: E402

RENAMED = {"normalize": "normalize_advantages", "baseline": "use_reinpp_baseline"}


def floats(values):
    return None if values is None else torch.tensor(values, dtype=torch.float32)


def flags(values):
    return None if values is None else torch.tensor(values, dtype=torch.bool)


def options(given, *names):
    return {RENAMED.get(name, name): given[name] for name in names if name in given}


def one_step(scores, steps):
    """Rewards [S, B] whose sum is the score, and flags of episodes that do not end before."""
    rewards = torch.zeros(steps, len(scores))
    rewards[0] = floats(scores)
    return rewards, torch.zeros(steps + 1, len(scores), dtype=torch.bool)


@pytest.mark.parametrize("case", cases("gae"))
def test_gae(case: Case) -> None:
    given = case.given
    advantage, returns = get_embodied_advantage("gae")(
        floats(given["rewards"]),
        flags(given.get("mask")),
        dones=flags(given["dones"]),
        values=floats(given["values"]),
        **options(given, "gamma", "lam", "normalize", "normalize_returns"),
    )
    finite = bool(torch.isfinite(advantage).all() and torch.isfinite(returns).all())
    case.check({"advantages": advantage, "returns": returns, "finite": finite}, mask=given.get("mask"))


@pytest.mark.parametrize("case", [*cases("grpo"), *cases("raw"), *cases("reinpp")])
def test_estimators_of_scores(case: Case) -> None:
    given = case.given
    scores = given["rewards"] if case.op == "raw" else given["scores"]
    mask = given.get("mask")
    rewards, dones = one_step(scores, len(mask) if mask else 1)
    with case.outcome():
        advantage, returns = get_embodied_advantage(case.op)(
            rewards,
            flags(mask),
            dones=dones,
            **options(given, "group_size", "normalize", "baseline", "kl_beta"),
            **({"kl": floats(given["kl"])} if "kl" in given else {}),
        )
        assert returns is None
        case.check({"advantages": advantage if mask else advantage[0]}, mask=mask)


@pytest.mark.parametrize("case", [*cases("grpo_video"), *cases("grpo_dynamic")])
def test_estimators_of_frames_and_turns(case: Case) -> None:
    given = dict(case.given)
    rewards = floats(given.pop("rewards"))
    if "idx_to_traj" in given:
        given["idx_to_traj"] = torch.tensor(given["idx_to_traj"])
    with case.outcome():
        case.check({"advantages": get_embodied_advantage(case.op)(rewards, None, **given)[0]})


@pytest.mark.parametrize("case", cases("opd"))
def test_opd(case: Case) -> None:
    given = case.given
    with case.outcome():
        advantage, _ = get_embodied_advantage("opd")(
            None,
            log_probs=floats(given["prev_logprobs"]),
            teacher_log_probs=floats(given["teacher_logprobs"]),
            num_action_chunks=given["num_action_chunks"],
        )
        case.check({"advantages": advantage})


@pytest.mark.parametrize("case", cases("scores"))
def test_scores(case: Case) -> None:
    rewards, dones = floats(case.given["rewards"])[..., 0], flags(case.given["dones"])[..., 0]
    case.check({"scores": episode_scores(rewards, dones).reshape(-1, case.given["group_size"])})


@pytest.mark.parametrize("case", cases("pipeline"))
def test_the_whole_way(case: Case) -> None:
    given = case.given
    with case.outcome():
        found = estimate(
            given["adv_type"],
            floats(given["rewards"]),
            flags(given["dones"]),
            values=floats(given.get("values")),
            loss_mask=flags(given.get("loss_mask")),
            **options(given, "gamma", "lam", "normalize", "reward_type", "group_size"),
        )
        case.check({"advantages": found.advantages, "returns": found.returns})


@pytest.mark.parametrize("case", cases("loss_mask"))
def test_loss_mask(case: Case) -> None:
    mask, sums = loss_mask(flags(case.given["dones"]), chunk_level=case.given.get("chunk_level", False))
    case.check({"loss_mask": mask, "loss_mask_sum": sums})


@pytest.mark.parametrize("case", cases("filter_rewards"))
def test_filter_rewards(case: Case) -> None:
    given = dict(case.given)
    case.check({"loss_mask": filter_rewards(floats(given.pop("rewards")), **given)})


@pytest.mark.parametrize("case", cases("bootstrap"))
def test_bootstrap(case: Case) -> None:
    given = dict(case.given)
    rewards = bootstrap_rewards(
        floats(given.pop("rewards")),
        floats(given.pop("bootstrap_values")),
        dones=flags(given.pop("dones")),
        truncations=flags(given.pop("truncations")),
        **{("kind" if name == "bootstrap_type" else name): value for name, value in given.items()},
    )
    case.check({"rewards": rewards})


@pytest.mark.parametrize("case", cases("merge_epochs"))
def test_merge_epochs(case: Case) -> None:
    case.check({"out": merge_epochs(floats(case.given["x"]), case.given["rollout_epoch"])})


@pytest.mark.parametrize("case", cases("advantage_lookup"))
def test_a_name_is_given_once(case: Case) -> None:
    from plugrl.algorithms.embodied import register_embodied_advantage

    with advantages.temporary(), case.outcome():
        register_embodied_advantage(case.given["registered"], force=case.given["force"])(lambda *a, **k: None)
