"""Reference values of every advantage estimator (table 11.1)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms import advantages, get_advantage  # noqa: E402

NO_STD = {"norm_adv_by_std_in_grpo": False}
COMPONENTS = {
    "reward_components": {"accuracy": [0, 1, 0, 1, 0, 1, 1, 1], "format": [1, 1, 0, 0, 1, 1, 1, 0]},
    "gdpo_reward_weights": [1, 1],
}
GRPO_B = [-0.146943, 0.577349, -0.918397, 0, -1.154699, 1.06534, 0, 0.577349]
RLOO_B = [-0.2, 0.5, -1.25, 0, -1, 1.45, 0, 0.5]

PER_ROW = [
    ("grpo", "A", {}, [0.866024, -0.866024, -0.866024, 0.866024, 0, 0, 0.699999]),
    ("grpo", "B", {}, GRPO_B),
    ("grpo_vectorized", "B", {}, GRPO_B),
    ("grpo", "E", {}, [0.707105, -0.707105, -0.707102, 0.707102]),
    ("grpo", "A", NO_STD, [0.5, -0.5, -0.5, 0.5, 0, 0, 0.7]),
    ("grpo", "B", NO_STD, [-0.133333, 0.333333, -0.833333, 0, -0.666667, 0.966667, 0, 0.333333]),
    ("rloo", "A", {}, [0.666667, -0.666667, -0.666667, 0.666667, 0, 0, 0.7]),
    ("rloo", "B", {}, RLOO_B),
    ("rloo_vectorized", "B", {}, RLOO_B),
    ("rloo_vectorized", "A", {}, [0.666667, -0.666667, -0.666667, 0.666667, 0, 0, 0]),
    (
        "reinforce_plus_plus",
        "B",
        {"gamma": 1.0},
        [-0.711669, 0.570617, -1.833669, 0.410332, -1.03224, 1.051475, 0.410332, 0.570617],
    ),
    (
        "reinforce_plus_plus_baseline",
        "B",
        {},
        [-0.347235, 0.402964, -1.472533, -0.132892, -1.204605, 1.42109, -0.132892, 0.402964],
    ),
    ("remax", "A", {"baselines": torch.full((7,), 0.5)}, [0.5, -0.5, -0.5, 0.5, 0.5, 0.5, 0.2]),
    ("opo", "B", {}, [-0.34, 0.333333, -1.04, 0, -0.666667, 0.76, 0, 0.333333]),
    ("grpo_passk", "B", {}, [0, 0, 0, 0, 0, 1.212284, 0, 0]),
    ("grpo_passk", "B", NO_STD, [0, 0, 0, 0, 0, 1.1, 0, 0]),
    ("gpg", "A", {}, [0.7, -0.7, -0.7, 0.7, 0, 0, 0.98]),
    ("gpg", "B", {}, [-0.152381, 0.380952, -0.952381, 0, -0.761905, 1.104762, 0, 0.380952]),
    ("gdpo", "B", COMPONENTS, [-0.20105, 0.782103, -1.67578, -0.803106, -0.692627, 1.27368, 0.401006, -0.692627]),
]


@pytest.mark.parametrize(("name", "which", "options", "expected"), PER_ROW)
def test_each_valid_token_has_the_value_of_its_row(batches, name, which, options, expected):
    batch = batches[which]
    got, returns = get_advantage(name)(batch.rewards, batch.mask, group_ids=batch.ids, **options)
    torch.testing.assert_close(got, torch.tensor(expected).unsqueeze(1) * batch.mask, rtol=1e-5, atol=1e-5)
    assert returns.shape == got.shape
    assert not returns[batch.mask == 0].any()


PER_TOKEN = [
    (
        "reinforce_plus_plus",
        {"gamma": 0.9},
        [
            [1.019217, 1.291324, 0, 1.261422, 1.560442],
            [-0.084165, 0, 0, 0.065344, 0],
            [-0.831714, -1.429753, -1.429753, 0, 0],
            [-0.737045, -0.660077, -0.574557, 0.184952, 0.364364],
        ],
        [[0.819, 0.91, 0, 0.9, 1], [0.45, 0, 0, 0.5, 0], [0.2, 0, 0, 0, 0], [0.23166, 0.2574, 0.286, 0.54, 0.6]],
    ),
    (
        "remax",
        {"baselines": torch.tensor([0.5, 0.25, 0, -0.1])},
        [[0.6, 0.6, 0, 0.5, 0.5], [0.25, 0, 0, 0.25, 0], [0.2, 0, 0, 0, 0], [0.5, 0.5, 0.5, 0.7, 0.7]],
        [[1.1, 1.1, 0, 1, 1], [0.5, 0, 0, 0.5, 0], [0.2, 0, 0, 0, 0], [0.4, 0.4, 0.4, 0.6, 0.6]],
    ),
    (
        "gae",
        {"gamma": 0.99, "lam": 0.9},
        [
            [1.383954, 1.337934, 0, 0.951728, 0.859591],
            [-1.0515, 0, 0, -0.043713, 0],
            [-0.261886, -1.188501, -1.549221, 0, 0],
            [-1.141475, -0.486011, -0.091678, 1.02339, 0.257388],
        ],
        [
            [0.874148, 0.958865, 0, 0.9306, 1],
            [0.4653, 0, 0, 0.5, 0],
            [0.227542, 0.0198, 0, 0, 0],
            [0.235418, 0.253107, 0.28407, 0.5544, 0.6],
        ],
    ),
    (
        "gae",
        {"gamma": 1.0, "lam": 1.0},
        [
            [1.696848, 1.423792, 0, 0.87768, 0.604624],
            [-1.033712, 0, 0, -0.214544, 0],
            [-0.4876, -1.306768, -1.579824, 0, 0],
            [-0.760656, -0.214544, 0.058512, 0.87768, 0.058512],
        ],
        [[1.1, 1.1, 0, 1, 1], [0.5, 0, 0, 0.5, 0], [0.2, 0, 0, 0, 0], [0.4, 0.4, 0.4, 0.6, 0.6]],
    ),
    (
        "tir_optimal_token_baseline",
        {
            "old_log_probs": torch.tensor(
                [
                    [-0.6, -0.3, -2, -2, -1.1],
                    [-0.9, -3, -0.4, -0.7, -3],
                    [-0.2, -0.5, -0.8, -1.1, -1.4],
                    [-0.35, -4, -4, -0.65, -4],
                ]
            ),
            "sum_pi_squared": torch.tensor(
                [
                    [0.5, 0.6, 0.2, 0.2, 0.4],
                    [0.45, 0.1, 0.6, 0.5, 0.1],
                    [0.8, 0.6, 0.5, 0.4, 0.3],
                    [0.65, 0.1, 0.1, 0.5, 0.1],
                ]
            ),
        },
        [
            [0.367689, 0.412282, 0, 1, 1],
            [-0.232311, 0, 0, -0.187718, 0],
            [-0.119368, -0.281417, -0.269157, 0, 0],
            [0.080632, 0.118583, 0.130843, 0.6, 0.6],
        ],
        [[1.1, 1.1, 0, 1, 1], [0.5, 0, 0, 0.5, 0], [0.2, 0, 0, 0, 0], [0.4, 0.4, 0.4, 0.6, 0.6]],
    ),
]


@pytest.mark.parametrize(("name", "options", "advantages", "returns"), PER_TOKEN)
def test_batch_with_holes_in_the_mask(batches, name, options, advantages, returns):
    batch = batches["E"]
    got = get_advantage(name)(batch.rewards, batch.mask, group_ids=batch.ids, values=batch.values, **options)
    torch.testing.assert_close(got[0], torch.tensor(advantages), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], torch.tensor(returns), rtol=1e-5, atol=1e-5)


def test_gae_of_two_rows():
    got = get_advantage("gae")(
        torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 1]]),
        torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        values=torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 2),
        gamma=1.0,
        lam=0.95,
    )
    advantages = [[1.256361, 0.468544, -0.360737, 0], [0.910934, 0.104936, -0.743482, -1.636553]]
    returns = [[0.92675, 0.965, 1, 0], [0.899675, 0.9365, 0.97, 1]]
    torch.testing.assert_close(got[0], torch.tensor(advantages), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], torch.tensor(returns), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "values", [[9, -3, 4, 5, 77, 6], [0.1, 0.2, 4, 5, -8, 6], [float("nan"), 0, 4, 5, float("inf"), 6]]
)
def test_gae_ignores_values_at_masked_positions(values):
    rewards, mask = torch.tensor([[0, 0, 0.1, 0.1, 0, 1]]), torch.tensor([[0, 0, 1, 1, 0, 1]])
    got = get_advantage("gae")(rewards, mask, values=torch.tensor([values]), gamma=0.9, lam=0.8)
    torch.testing.assert_close(got[0], torch.tensor([[0, 0, 0.954631, 0.085277, 0, -1.039908]]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], torch.tensor([[0, 0, 2.367999, 1.899999, 0, 1]]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_nearly_equal_rewards_keep_their_digits(name):
    rewards, mask = torch.tensor([[1], [1.0001], [2], [2.0001]]), torch.ones(4, 1)
    got, _ = get_advantage(name)(rewards, mask, group_ids=[0, 0, 1, 1])
    expected = torch.tensor([[-0.698078], [0.696416], [-0.698898], [0.69557]])
    torch.testing.assert_close(got, expected, rtol=2e-3, atol=0)


def test_optimal_token_baseline(batches):
    batch = batches["A"]
    old_log_probs = [
        [-0.5, -1, -1.5, -0.25],
        [-0.2, -0.4, -0.6, -0.8],
        [-1, -0.5, -0.5, -0.5],
        [-0.3, -0.9, -0.1, -0.1],
        [-0.7, -0.7, -0.7, -0.7],
        [-1.2, -0.2, -0.2, -0.2],
        [-0.4, -0.8, -1.6, -0.1],
    ]
    sum_pi_squared = [
        [0.5, 0.4, 0.3, 0.7],
        [0.7, 0.6, 0.5, 0.4],
        [0.3, 0.5, 0.5, 0.5],
        [0.6, 0.4, 0.9, 0.9],
        [0.45, 0.45, 0.45, 0.45],
        [0.35, 0.75, 0.75, 0.75],
        [0.55, 0.4, 0.25, 0.9],
    ]
    got = get_advantage("optimal_token_baseline")(
        batch.rewards,
        batch.mask,
        group_ids=batch.ids,
        old_log_probs=torch.tensor(old_log_probs),
        sum_pi_squared=torch.tensor(sum_pi_squared),
    )
    advantages = [
        [0.607296, 0.162714, 0.286366, 0],
        [-0.392704, -0.837286, -0.713634, 0],
        [-0.392704, 0, 0, 0],
        [0.607296, 0.162714, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 0, 0],
        [0.7, 0.7, 0.7, 0],
    ]
    returns = [[1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0.7, 0.7, 0.7, 0]]
    torch.testing.assert_close(got[0], torch.tensor(advantages), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], torch.tensor(returns), rtol=1e-5, atol=1e-5)


def test_pass_at_k_refuses_a_group_of_one(batches):
    with pytest.raises(ValueError, match="at least two samples"):
        get_advantage("grpo_passk")(batches["A"].rewards, batches["A"].mask, group_ids=batches["A"].ids)


@pytest.mark.parametrize("name", ["grpo2", "GRPO", "Gae"])
def test_unknown_or_differently_written_name_is_an_error_that_lists_the_known(name):
    with pytest.raises(ValueError, match="gae, gdpo, gpg, grpo, "):
        get_advantage(name)
    assert name not in advantages
