"""Reference values and gradients of the KL estimators (table 11.2), KL in the reward and its controllers (11.4)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms import AdaptiveKLController, FixedKLController, kl, kl_penalty_in_reward, make_kl_controller  # noqa: E402

FIRST = ([-1, -2, -0.5], [-1.5, -1, -0.5])
SECOND = ([-0.3, -2.2, -1, -4, -0.05], [-0.9, -1.1, -1, -0.5, -2.05])
THIRD = ([-0.7, -0.1, -3], [-0.2, -1.6, -2.75])
CASES = [
    ("k1", FIRST, [0.5, -1, 0], [1, 1, 1]),
    ("k3", FIRST, [0.106531, 0.718282, 0], [0.393469, -1.718282, 0]),
    ("low_var_kl", FIRST, [0.106531, 0.718282, 0], [0.393469, -1.718282, 0]),
    ("k3+", FIRST, [0.106531, 0.718282, 0], [0.5, -1, 0]),
    ("k1+", FIRST, [0.5, -1, 0], [0.5, -1, 0]),
    ("abs+", FIRST, [0.5, 1, 0], [0.5, -1, 0]),
    ("k2+", FIRST, [0.125, 0.5, 0], [0.5, -1, 0]),
    ("mse+", FIRST, [0.125, 0.5, 0], [0.5, -1, 0]),
    ("abs", SECOND, [0.6, 1.1, 0, 3.5, 2], [1, -1, 0, -1, 1]),
    ("k2", SECOND, [0.18, 0.605, 0, 6.125, 2], [0.6, -1.1, 0, -3.5, 2]),
    ("mse", SECOND, [0.18, 0.605, 0, 6.125, 2], [0.6, -1.1, 0, -3.5, 2]),
    ("kl", THIRD, [-0.5, 1.5, -0.25], [1, 1, 1]),
    ("low_var_kl+", THIRD, [0.148721, 0.72313, 0.034025], [-0.5, 1.5, -0.25]),
    ("k3", ([0], [-60]), [10], [0]),
    ("k3", ([-0.5, -13], [-12.5, -1]), [10, 10], [0, 0]),
    ("k3+", ([-30, -2], [0, -1.5]), [10, 0.148721], [-30, -0.5]),
]


@pytest.mark.parametrize(("kind", "log_probs", "value", "gradient"), CASES)
def test_value_and_gradient(kind, log_probs, value, gradient):
    new = torch.tensor(log_probs[0], dtype=torch.float32, requires_grad=True)
    got = kl(new, torch.tensor(log_probs[1], dtype=torch.float32), kind)
    got.sum().backward()
    torch.testing.assert_close(got.detach(), torch.tensor(value, dtype=torch.float32), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(new.grad, torch.tensor(gradient, dtype=torch.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["full", "k4", "K3", "", "+", "k3++"])
def test_unknown_kind_lists_the_known(kind):
    with pytest.raises(ValueError, match="abs, abs\\+, k1, .*low_var_kl"):
        kl(torch.zeros(1), torch.zeros(1), kind)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs", "k3+"])
def test_masked_garbage_stays_out(kind):
    new = torch.tensor([[-1.0, float("nan"), float("-inf")]], requires_grad=True)
    mask = torch.tensor([[1, 0, 0]])
    got = kl(new, torch.tensor([[-2.0, 0.0, float("-inf")]]), kind, mask)
    got.sum().backward()
    assert got[0, 1:].tolist() == [0, 0]
    assert new.grad[0, 1:].tolist() == [0, 0]
    assert new.grad[0, 0].isfinite()


@pytest.mark.parametrize(
    ("kind", "beta", "rewards", "penalty"),
    [
        ("kl", 0.1, [[-0.05, 0.1, 1], [-0.02, 0.01, 0]], -0.058333),
        ("mse", 0.2, [[-0.025, -0.1, 1], [-0.004, -0.001, 0]], 0.110417),
    ],
)
def test_kl_in_the_reward(kind, beta, rewards, penalty):
    got, metrics = kl_penalty_in_reward(
        torch.tensor([[0.0, 0, 1], [0, 0, 0]]),
        torch.tensor([[-1, -2, -0.5], [-0.3, -0.6, -0.9]]),
        torch.tensor([[-1.5, -1, -0.5], [-0.5, -0.5, -0.5]]),
        torch.tensor([[1, 1, 1], [1, 1, 0]]),
        beta=beta,
        kind=kind,
    )
    torch.testing.assert_close(got, torch.tensor(rewards), rtol=1e-5, atol=1e-5)
    assert float(metrics["actor/reward_kl_penalty"]) == pytest.approx(penalty, rel=1e-5, abs=1e-6)
    assert float(metrics["actor/reward_kl_penalty_coeff"]) == pytest.approx(beta)


def test_adaptive_controller_steers_towards_the_target():
    controller = AdaptiveKLController(0.001, target_kl=0.1, horizon=10000)
    seen = []
    for current, steps in [(0.2, 320), (0.11, 320), (0, 320)]:
        controller.update(current, steps)
        seen.append(controller.value)
    assert seen == pytest.approx([0.0010064, 0.00100962, 0.001003159], rel=1e-5)
    other = AdaptiveKLController(0.5)
    other.load_state_dict(controller.state_dict())
    assert other.value == controller.value


def test_fixed_controller_stays():
    controller = make_kl_controller("fixed", kl_coef=0.001)
    controller.update(5.0, 320)
    assert isinstance(controller, FixedKLController)
    assert controller.value == 0.001


def test_controllers_refuse_nonsense():
    with pytest.raises(ValueError, match="must be positive"):
        AdaptiveKLController(horizon=0)
    with pytest.raises(ValueError, match="adaptive, fixed"):
        make_kl_controller("adaptiv")
