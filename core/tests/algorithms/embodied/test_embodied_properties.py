"""What holds for every loss and estimator of policies that act, and mistakes of others that must not come back."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms.embodied import (  # noqa: E402
    Averaging,
    ExplainedVariance,
    Moments,
    at_level,
    bootstrap_rewards,
    check_embodied_options,
    embodied_objective,
    estimate,
    filter_rewards,
    get_embodied_advantage,
    get_embodied_loss,
    loss_mask,
    register_embodied_loss,
)
from plugrl.algorithms.embodied.chunks import flatten_chunks, unflatten_steps  # noqa: E402
from plugrl.algorithms.registry import losses  # noqa: E402
from plugrl.errors import NotRegistered, PluginError, UserError  # noqa: E402

B, C, D = 8, 3, 4
LOSSES = ("actor", "actor_critic", "decoupled_actor_critic", "opd")


def batch(seed: int = 0):
    """Rows with a mask [B, C] in which one row is empty, and what every loss needs."""
    source = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=source)

    mask = torch.rand(B, C, generator=source) < 0.7
    mask[3] = False
    return {
        "log_probs": -randn(B, C, D).abs(),
        "old_log_probs": -randn(B, C, D).abs(),
        "ref_log_probs": -randn(B, C, D).abs(),
        "entropy": randn(B, C, D).abs(),
        "advantages": randn(B, C),
        "mask": mask,
        "values": randn(B, C),
        "old_values": randn(B, C),
        "returns": randn(B, C),
        "versions": torch.randint(0, 3, (B, 1), generator=source),
        "mask_sum": mask.sum(1, keepdim=True).expand(B, C).float(),
    }


def options(loss_type, level, rows, tensors):
    chosen = {name: tensor[rows] for name, tensor in tensors.items()}
    chosen |= {"loss_type": loss_type, "logprob_type": level, "entropy_coeff": 0.3, "kl_loss_coef": 0.2}
    if loss_type in ("actor", "opd"):
        chosen = {name: value for name, value in chosen.items() if name not in ("values", "old_values", "returns")}
    chosen |= {"clip_dual": 3.0, "clip_low": 0.2, "clip_high": 0.3, "current_version": 3}
    return chosen


@pytest.mark.parametrize("level", ["token_level", "action_level"])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_neither_micro_batches_nor_ranks_change_loss_gradient_or_reported_losses(loss_type, level):
    tensors = batch()
    count = int(tensors["mask"].sum())
    for lengths in (None, 9):
        reference = None
        for split, ranks in (([8], 1), ([4, 4], 1), ([1, 2, 5], 1), ([4, 4], 2), ([2, 2, 2, 2], 4)):
            new, values = tensors["log_probs"].clone().requires_grad_(), tensors["values"].clone().requires_grad_()
            shares = {"loss": 0.0, "actor/loss": 0.0, "actor/pg_loss": 0.0, "actor/entropy": 0.0, "actor/kl_loss": 0.0}
            for rows in torch.arange(B).split(split):
                loss, metrics = embodied_objective(
                    **options(loss_type, level, rows, {**tensors, "log_probs": new, "values": values}),
                    max_episode_steps=lengths,
                    dp_size=ranks,
                    batch_num_tokens=count,
                    batch_rows=B,
                )
                (loss / ranks).backward()  # engines average gradients over ranks
                for name in shares:
                    shares[name] += float(loss.detach() if name == "loss" else metrics[name]) / ranks
            found = (shares, new.grad, values.grad)
            reference = reference or found
            assert shares == pytest.approx(reference[0], rel=1e-5, abs=1e-6), (split, ranks)
            torch.testing.assert_close(new.grad, reference[1], rtol=1e-5, atol=1e-7)
            assert new.grad[3].abs().sum() == 0, "a row without a valid action has a gradient"
            if values.grad is not None:
                torch.testing.assert_close(values.grad, reference[2], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_nothing_that_stands_at_a_masked_action_reaches_loss_or_gradient(loss_type, garbage):
    tensors, rows = batch(), torch.arange(B)
    results = []
    for fill in (0.0, garbage):
        dirty = {
            name: tensor.masked_fill(~tensors["mask"].reshape(B, C, *[1] * (tensor.dim() - 2)), fill)
            if name in ("log_probs", "old_log_probs", "ref_log_probs", "advantages", "values", "old_values", "returns")
            else tensor
            for name, tensor in tensors.items()
        }
        new = dirty["log_probs"].clone().requires_grad_()
        loss, metrics = embodied_objective(**options(loss_type, "token_level", rows, {**dirty, "log_probs": new}))
        loss.backward()
        results.append((loss, new.grad, {name: float(value) for name, value in metrics.items()}))
    torch.testing.assert_close(results[0][:2], results[1][:2])
    assert results[0][2] == pytest.approx(results[1][2])


def test_the_first_ratio_is_one_and_the_loss_then_is_the_mean_advantage():
    tensors = batch()
    new = tensors["log_probs"].requires_grad_()
    for level in ("token_level", "action_level"):
        loss, metrics = embodied_objective(
            new, new.detach(), tensors["advantages"], tensors["mask"], loss_type="actor", logprob_type=level
        )
        assert float(metrics["actor/ratio"]) == 1.0
        assert loss.item() == pytest.approx(-float(tensors["advantages"][tensors["mask"]].mean()), abs=1e-6), (
            f"{level}: the loss is scaled by the number of tokens of an action"
        )


def test_chunk_level_takes_one_ratio_a_chunk_and_refuses_finer_advantages():
    log_probs = torch.full((2, C, D), 0.01, requires_grad=True)
    for advantages in (torch.ones(2, 1), torch.ones(2)):
        loss, metrics = embodied_objective(
            log_probs, torch.zeros(2, C, D), advantages, loss_type="actor", logprob_type="chunk_level",
            entropy=torch.ones(2, C, D), entropy_type="chunk_level",
        )  # fmt: skip
        assert float(metrics["actor/ratio"]) == pytest.approx(math.exp(0.12))
        assert float(metrics["actor/entropy"]) == C * D, "entropy of a chunk is summed, each row counts once"
        assert float(metrics["actor/loss"]) == pytest.approx(loss.item())
    with pytest.raises(UserError, match=r"Advantages \[2, 3\] are finer .* set algorithm.reward_type to chunk_level"):
        embodied_objective(log_probs, log_probs, torch.ones(2, C), loss_type="actor", logprob_type="chunk_level")


def test_an_empty_mask_gives_loss_zero_without_gradient_and_neutral_metrics():
    tensors, rows = batch(), torch.arange(B)
    tensors["mask"][:] = False
    new = tensors["log_probs"].clone().requires_grad_()
    chosen = options("decoupled_actor_critic", "token_level", rows, {**tensors, "log_probs": new})
    loss, metrics = embodied_objective(**chosen)
    loss.backward()
    assert loss.item() == 0.0 and float(new.grad.abs().sum()) == 0.0
    assert float(metrics["actor/proximal_ratio"]) == 1.0


def test_the_share_of_clipped_values_looks_at_the_values_themselves():
    from plugrl.algorithms.embodied.losses import critic

    values = torch.tensor([[0.1], [5.0], [-5.0], [9.0]])
    mask = torch.tensor([[True], [True], [True], [False]])
    _, metrics = critic(values, torch.ones(4, 1), torch.zeros(4, 1), mask, mean=Averaging(), value_clip=0.2)
    assert float(metrics["critic/value_clip_ratio"]) == pytest.approx(2 / 3)


def test_groups_of_one_and_single_values_never_become_nan():
    rewards, dones = torch.ones(2, 4, 1), torch.zeros(3, 4, 1, dtype=torch.bool)
    with pytest.raises(UserError, match=r"group_size must be at least 2, not 1"):
        estimate("grpo", rewards, dones, group_size=1)
    with pytest.raises(UserError, match="4 scenes cannot be cut into groups of 3"):
        estimate("GRPO", rewards, dones, group_size=3)
    assert Moments.of(torch.tensor([3.0])).std == 0.0


def test_a_dropped_episode_counts_neither_in_its_group_nor_in_the_statistics():
    rewards = torch.tensor([[[1.0], [0.0], [100.0], [1.0], [7.0], [7.0]]])
    dones = torch.zeros(2, 6, 1, dtype=torch.bool)
    valid = torch.tensor([True, True, False, True, False, False])
    mask = valid.reshape(1, 6, 1)
    for name, more in (("grpo", {}), ("reinpp", {"use_reinpp_baseline": True})):
        found = estimate(name, rewards, dones, loss_mask=mask, group_size=3, valid=valid, **more).advantages.flatten()
        assert torch.isfinite(found).all(), name
        assert found[[2, 4, 5]].abs().sum() == 0, f"{name}: a dropped episode has an advantage"
        assert found[3].abs() < 1e-6, f"{name}: the only valid episode of a group is compared with dropped ones"
    grpo = estimate("grpo", rewards, dones, loss_mask=mask, group_size=3, valid=valid).advantages.flatten()
    assert grpo[:2].tolist() == pytest.approx([2**-0.5, -(2**-0.5)], abs=1e-5)
    kept = filter_rewards(rewards, mask, group_size=3, lower=0.1, upper=0.9, valid=valid)
    assert kept.flatten().tolist() == [True, True, False, False, False, False]


def test_reinpp_walks_along_time_and_leaves_its_input_alone():
    rewards = torch.tensor([[0.0, 0.0], [0.0, 3.0], [1.0, 0.0]])
    dones = torch.zeros(4, 2, dtype=torch.bool)
    before = rewards.clone()
    found, _ = get_embodied_advantage("reinpp")(rewards, None, dones=dones, group_size=2, use_reinpp_baseline=True)
    assert torch.equal(rewards, before)
    assert found[:, 0].tolist() == pytest.approx([-1.0] * 3) and found[:, 1].tolist() == pytest.approx([1.0] * 3)


def test_statistics_are_the_same_however_the_batch_is_cut():
    values = torch.randn(64, generator=torch.Generator().manual_seed(2)) + 1000
    whole = Moments.of(values)
    parts = sum((Moments.of(part) for part in values.split([1, 30, 33])), Moments())
    assert parts.std == pytest.approx(whole.std, rel=1e-9) == pytest.approx(values.double().std().item(), rel=1e-9)
    assert parts.mean == pytest.approx(whole.mean, rel=1e-12)
    constant = ExplainedVariance.of(torch.full((3,), 0.1), torch.rand(3)) + ExplainedVariance()
    assert math.isnan(constant.value)


def test_an_end_inside_a_chunk_stops_the_flow_of_value_and_ends_the_mask():
    rewards = torch.tensor([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 5.0]]])
    dones = torch.tensor([[[False] * 3], [[False, True, False]], [[False] * 3]])
    values = torch.zeros(3, 1, 3)
    found = estimate("gae", rewards, dones, values=values, gamma=1.0, lam=1.0, normalize_advantages=False)
    assert found.advantages[0, 0, :2].tolist() == [1.0, 1.0], "the reward of the next episode flowed back"
    mask, steps = loss_mask(dones)
    assert mask.flatten().tolist() == [True, True, False, False, False, False] and steps.flatten()[0] == 2
    chunks, _ = loss_mask(dones, chunk_level=True)
    assert chunks.flatten().tolist() == [True, False]


def test_a_bootstrapped_value_stands_where_the_time_ran_out():
    truncations = torch.tensor([[False, True, False], [False, False, False]])
    dones = torch.tensor([[False, True, False], [True, False, False]])
    rewards = torch.zeros(2, 3)
    values = torch.tensor([[2.0], [torch.nan]])
    found = bootstrap_rewards(rewards, values, dones=dones, truncations=truncations, gamma=0.5)
    assert found.tolist() == [[0, 1, 0], [0, 0, 0]], "V of a scene that succeeded was used, or the wrong column"
    with pytest.raises(UserError, match='No bootstrap type "never"'):
        bootstrap_rewards(rewards, values, dones=dones, truncations=truncations, gamma=0.5, kind="never")


def test_chunks_and_steps_are_the_same_numbers():
    values = torch.arange(24.0).reshape(2, 3, 4)
    steps = flatten_chunks(values)
    assert steps[:5, 1].tolist() == [4, 5, 6, 7, 16]
    assert torch.equal(unflatten_steps(steps, 4), values)


def test_what_is_wrong_is_said_with_the_key_that_sets_it():
    rewards, dones = torch.zeros(2, 4, 3), torch.zeros(3, 4, 3, dtype=torch.bool)
    with pytest.raises(UserError, match=r"need 3\. .*chunk_level"):
        estimate("gae", rewards, dones, values=torch.zeros(3, 4, 1))
    with pytest.raises(UserError, match=r"dones has shape \[2, 4, 3\], expected \[3, 4, 3\]"):
        estimate("raw", rewards, dones[1:])
    with pytest.raises(UserError, match="add_value_head"):
        embodied_objective(rewards[:, :, 0], rewards[:, :, 0], rewards[:, :, 0], loss_type="actor_critic")
    with pytest.raises(UserError, match="clip_ratio_c.* must be above 1"):
        embodied_objective(rewards[:, :, 0], rewards[:, :, 0], rewards[:, 0, :1], loss_type="actor", clip_dual=0.5)
    with pytest.raises(UserError, match="no whole number of actions of 3"):
        at_level(torch.zeros(2, 4), "action_level", 3)
    with pytest.raises(NotRegistered, match="embodied/decoupled_actor_critic"):
        get_embodied_loss("decoupled_actor")
    with pytest.raises(UserError, match='no option "gama". Did you mean "gamma"'):
        check_embodied_options("advantage", "gae", {"gama": 1})


def test_a_loss_that_does_not_average_over_the_whole_batch_is_refused():
    with losses.temporary(), pytest.raises(PluginError, match="does not take mean"):
        register_embodied_loss("careless")(lambda log_probs, old_log_probs, advantages, mask: (log_probs.mean(), {}))


@pytest.mark.parametrize("loss_type", LOSSES)
def test_gradients_agree_with_finite_differences(loss_type):
    tensors = {name: value.double() if value.is_floating_point() else value for name, value in batch(4).items()}
    tensors["old_log_probs"] = tensors["log_probs"] + 0.02 * tensors["advantages"].unsqueeze(-1)
    tensors["ref_log_probs"] = tensors["log_probs"] - 0.1

    def loss(new):
        chosen = options(loss_type, "action_level", torch.arange(B), {**tensors, "log_probs": new})
        if loss_type == "decoupled_actor_critic":  # the interpolated policy follows the new one, held fixed
            chosen["proximal_log_probs"] = tensors["old_log_probs"] * 0.9 + 0.1 * tensors["log_probs"]
        return embodied_objective(**chosen)[0]

    assert torch.autograd.gradcheck(loss, tensors["log_probs"].clone().requires_grad_(), fast_mode=True)
