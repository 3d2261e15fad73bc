"""Reference values and gradients of the losses (table 11.4)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms import actor_objective, get_policy_loss, policy_loss, value_loss  # noqa: E402


def close(got, expected):
    torch.testing.assert_close(got.detach(), torch.as_tensor(expected).to(got), rtol=1e-5, atol=1e-5)


T, S = "token-mean", "seq-mean-token-mean"
DPPO = (-0.025828, 0.2, -0.254, 0, [[-0.237061, -0.134064, 0], [0.269972, 0.180967, 0]])
MODES = [
    ("vanilla", "P", T, {}, 0.445714, 0.428571, 0.148836, 0.142857, [[-0.142857, 0, -0.085714, 0.2, 0, 0, 0]]),
    ("vanilla", "Q same", T, {}, -0.2, 0, 0, 0, [[-0.2, -0.2, -0.2], [0.2, 0.2, 0]]),
    ("vanilla", "far", T, {}, -0.24, 1, 0, 0, [[0, 0]]),
    (
        "vanilla",
        "P",
        T,
        {"rollout_is_weights": torch.tensor([[1, 2, 0.5, 1, 1, 2, 0.25]])},
        0.098571,
        0.428571,
        0.148836,
        0.142857,
        [[-0.142857, 0, -0.042857, 0.2, 0, 0, 0]],
    ),
    ("vanilla", "Q", S, {}, 0.054403, 0.2, -0.254, 0, [[-0.197551, -0.11172, 0], [0.337465, 0.226209, 0]]),
    (
        "gspo",
        "Q",
        S,
        {"clip_low": 3e-4, "clip_high": 4e-4},
        0.052386,
        0.6,
        -0.254,
        0,
        [[0, 0, 0], [0.276293, 0.276293, 0]],
    ),
    ("gpg", "Q", T, {}, 0.146, None, None, None, [[-0.2, -0.2, -0.2], [0.2, 0.2, 0]]),
    ("cispo", "Q", T, {}, 0.177503, 0.6, -0.254, 0, [[-0.237061, -0.16, -0.24], [0.24, 0.180967, 0]]),
    ("sapo", "Q", S, {}, -0.251364, 0, -0.254, 0, [[-0.195865, -0.108738, -0.148262], [0.326331, 0.225646, 0]]),
    ("geo_mean", "Q", T, {}, 0.057561, 0.4, -0.254, 0.2, [[-0.165008, -0.165008, 0], [0.276293, 0.276293, 0]]),
    ("dppo_tv", "Q", T, {}, *DPPO),
    ("dppo_kl", "Q", T, {}, *DPPO),
    ("dro", "Q", T, {"dro_beta": 0.05}, 0.155894, None, -0.254, None, [[-0.1983, -0.204, -0.187], [0.203, 0.199, 0]]),
]


@pytest.mark.parametrize(
    ("mode", "which", "aggregation", "options", "loss", "clipped", "kl", "lower", "gradient"), MODES
)
def test_loss_modes(loss_batches, mode, which, aggregation, options, loss, clipped, kl, lower, gradient):
    batch = loss_batches[which]
    new = batch.new.clone().requires_grad_()
    keywords = {"clip_low": batch.clip_low, "clip_high": batch.clip_high, "clip_dual": 3.0, **options}
    got, metrics = get_policy_loss(mode)(
        new, batch.old, batch.advantages, batch.mask, aggregation=aggregation, **keywords
    )
    got.backward()
    close(got, loss)
    close(new.grad, gradient)
    expected = {"actor/pg_clipfrac": clipped, "actor/ppo_kl": kl, "actor/pg_clipfrac_lower": lower}
    expected = {name: value for name, value in expected.items() if value is not None}
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        close(metrics[name], value)
        assert not metrics[name].requires_grad


def test_policy_loss_is_the_vanilla_mode(loss_batches):
    batch = loss_batches["P"]
    loss, metrics = policy_loss(
        batch.new, batch.old, batch.advantages, batch.mask, clip_low=0.2, clip_high=0.28, clip_dual=3.0
    )
    close(loss, 0.445714)
    close(metrics["actor/pg_clipfrac_lower"], 0.142857)
    single, _ = policy_loss(batch.new, batch.old, batch.advantages, batch.mask, clip_low=0.2, clip_high=0.28)
    # Without the dual clip the last token (ratio 5, A = -1) costs 5 and not 3.
    close(single, 0.445714 + 2 / 7)


def test_errors_name_what_is_wrong(loss_batches):
    batch = loss_batches["Q"]
    tensors = (batch.new, batch.old, batch.advantages, batch.mask)
    with pytest.raises(ValueError, match="above 1"):
        policy_loss(*tensors, clip_low=0.2, clip_high=0.2, clip_dual=0.9)
    with pytest.raises(ValueError, match="dro_beta"):
        get_policy_loss("dro")(*tensors, clip_low=0.2, clip_high=0.2)
    with pytest.raises(ValueError, match="cispo, clip_cov, .*vanilla"):
        get_policy_loss("ppo")
    with pytest.raises(ValueError, match='no option "tau_posi". Did you mean "tau_pos"'):
        get_policy_loss("sapo")(*tensors, tau_posi=1.0)


TOTALS = [
    (
        "low_var_kl",
        "token-mean",
        (-0.160186, 0.92, 0.136712, -0.155715),
        [[-0.232329, -0.147038, 0.013343], [0.273597, 0.17397, 0]],
    ),
    (
        "k3+",
        "seq-mean-token-sum",
        (-0.400464, 2.3, 0.341781, -0.389286),
        [[-0.579152, -0.36016, 0.055], [0.684929, 0.437419, 0]],
    ),
]


@pytest.mark.parametrize(("kind", "aggregation", "parts", "gradient"), TOTALS)
def test_total_actor_loss(loss_batches, kind, aggregation, parts, gradient):
    batch = loss_batches["Q"]
    new = batch.new.clone().requires_grad_()
    loss, metrics = actor_objective(
        new,
        batch.old,
        batch.advantages,
        batch.mask,
        clip_low=0.2,
        clip_high=0.2,
        clip_dual=3.0,
        aggregation=aggregation,
        entropy=batch.entropy,
        entropy_coeff=0.01,
        ref_log_probs=batch.ref,
        kl_loss_coef=0.1,
        kl_loss_type=kind,
    )
    loss.backward()
    for name, value in zip(("pg_loss", "entropy_loss", "kl_loss", "loss"), parts, strict=True):
        close(metrics[f"actor/{name}"], value)
    close(loss, parts[3])
    close(new.grad, gradient)
    close(metrics["actor/kl_coef"], 0.1)


VALUE = [
    ({}, 0.366, [[0, 0.1, 0], [0.2, -0.3, 0]]),
    (
        {"aggregation": "seq-mean-token-mean", "dp_size": 2, "global_batch_size": 4},
        0.440417,
        [[0, 0.083333, 0], [0.25, -0.375, 0]],
    ),
]


@pytest.mark.parametrize(("options", "loss", "gradient"), VALUE)
def test_value_loss(options, loss, gradient):
    values = torch.tensor([[0.9, 1, 0.5], [2, -0.5, 0.3]], requires_grad=True)
    got, metrics = value_loss(
        values,
        torch.tensor([[0.1, 0.2, 0.4], [0.8, 0.4, 0.3]]),
        torch.tensor([[1, 0.5, 0.5], [1, 1, 1]]),
        torch.tensor([[1, 1, 1], [1, 1, 0]]),
        cliprange_value=0.5,
        **options,
    )
    got.backward()
    close(got, loss)
    close(metrics["critic/vf_clipfrac"], 0.2)
    close(metrics["critic/vpred_mean"], (0.9 + 1 + 0.5 + 2 - 0.5) / 5)
    close(values.grad, gradient)
