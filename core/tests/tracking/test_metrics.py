"""Data and timing metrics against the reference (11.5), and reduction by declaration (MX-1)."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from plugrl.tracking.metrics import (  # noqa: E402
    Metric,
    critic_metrics,
    data_metrics,
    reduce_metrics,
    rollout_difference_metrics,
    sequence_length_metrics,
    timing_metrics,
    variance_proxy_metrics,
)

EXPECTED = {
    "critic/score/mean": 1,
    "critic/score/max": 1,
    "critic/score/min": 1,
    "critic/rewards/mean": 0.9,
    "critic/rewards/max": 0.9,
    "critic/rewards/min": 0.9,
    "critic/advantages/mean": 0.5,
    "critic/advantages/max": 0.5,
    "critic/advantages/min": 0.5,
    "critic/returns/mean": 0.5,
    "critic/returns/max": 0.5,
    "critic/returns/min": 0.5,
    "response_length/mean": 1.5,
    "response_length/max": 3,
    "response_length/min": 0,
    "response_length/clip_ratio": 0.5,
    "response_length_non_aborted/mean": 3,
    "response_length_non_aborted/max": 3,
    "response_length_non_aborted/min": 3,
    "response_length_non_aborted/clip_ratio": 1,
    "response/aborted_ratio": 0.5,
    "prompt_length/mean": 2.5,
    "prompt_length/max": 3,
    "prompt_length/min": 2,
    "prompt_length/clip_ratio": 0.5,
}


def small_batch():
    gains = torch.tensor([[0.5, 0.5, 0.5], [0, 0, 0]])
    return {
        "token_scores": torch.tensor([[0, 0, 1.0], [0, 0, 0]]),
        "token_rewards": torch.tensor([[0, 0, 0.9], [0, 0, 0]]),
        "advantages": gains,
        "returns": gains,
        "response_mask": torch.tensor([[1, 1, 1], [0, 0, 0]]),
        "prompt_lengths": torch.tensor([2, 3]),
        "prompt_width": 3,
    }


def test_data_metrics():
    assert data_metrics(**small_batch()) == pytest.approx(EXPECTED)


def test_only_rows_that_reached_the_limit_count_as_clipped():
    got = data_metrics(**{**small_batch(), "prompt_width": 8, "response_width": 4})
    assert got["response_length/clip_ratio"] == got["prompt_length/clip_ratio"] == 0
    assert data_metrics(**small_batch(), response_width=3) == pytest.approx(EXPECTED)


def test_a_batch_of_aborted_rows_gives_zeros():
    batch = {**small_batch(), "response_mask": torch.zeros(2, 3)}
    got = data_metrics(**batch)
    assert got["response/aborted_ratio"] == 1
    assert got["critic/score/mean"] == got["critic/advantages/max"] == 0


def test_critic_and_turns():
    values = torch.tensor([[0.4, 0.5, 0.9], [7, 7, 7]])
    returns = torch.tensor([[0.5, 0.7, 1.0], [9, 9, 9]])
    got = data_metrics(**{**small_batch(), "values": values, "returns": returns, "num_turns": [2, 4]})
    assert got["critic/values/mean"] == pytest.approx(0.6)
    unexplained = torch.tensor([0.1, 0.2, 0.1]).var() / (torch.tensor([0.5, 0.7, 1.0]).var() + 1e-5)
    assert got["critic/vf_explained_var"] == pytest.approx(1 - float(unexplained), rel=1e-4)
    assert got["num_turns/max"] == 4
    assert "critic/vf_explained_var" not in critic_metrics(values, returns, torch.tensor([[1, 0, 0], [0, 0, 0]]))


def test_timing_metrics():
    got = timing_metrics(
        {"gen": 2.8, "ref": 0.4, "adv": 0.08, "update_actor": 1.6, "step": 5.0},
        prompt_lengths=torch.tensor([10, 14]),
        response_lengths=torch.tensor([20, 36]),
        num_devices=8,
    )
    expected = {
        "timing_per_token_ms/gen": 50,
        "timing_per_token_ms/update_actor": 20,
        "timing_per_token_ms/ref": 5,
        "timing_per_token_ms/adv": 1,
        "perf/total_num_tokens": 80,
        "perf/time_per_step": 5,
        "perf/throughput": 2,
        "timing_s/gen": 2.8,
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected)


def test_timing_without_tokens_is_zero():
    none = torch.tensor([0])
    got = timing_metrics({"gen": 1.0, "step": 0.0}, prompt_lengths=none, response_lengths=none, num_devices=1)
    assert got["timing_per_token_ms/gen"] == got["perf/throughput"] == 0


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 5), ("mean", 2.5), ("max", 4), ("min", 1)])
def test_metric_over_two_ranks(reduction, expected):
    ranks = [[Metric(value, reduction) for value in values] for values in ([1, 2], [3, 4])]
    assert float(Metric.reduce_over_ranks(ranks)) == expected


def test_metric_counts_must_agree():
    with pytest.raises(ValueError):
        Metric.reduce_over_ranks([[Metric(1.0)], [Metric(1.0), Metric(2.0)]])


def test_metric_takes_scalars_only():
    assert [float(Metric(value)) for value in (1, 1.0, torch.tensor(1), torch.tensor([1.0]))] == [1, 1, 1, 1]
    with pytest.raises(ValueError):
        Metric(torch.ones(2))
    with pytest.raises(ValueError):
        Metric(1.0, "median")
    with pytest.raises(ValueError):
        Metric.merge([Metric(1.0, "sum"), Metric(1.0, "max")])


def test_the_name_of_a_metric_does_not_decide_its_reduction():
    got = reduce_metrics([{"perf/climax_ratio": Metric(1.0, "mean")}, {"perf/climax_ratio": Metric(3.0, "mean")}])
    assert got == {"perf/climax_ratio": 2.0}
    with pytest.raises(ValueError, match="only_here"):
        reduce_metrics([{"only_here": Metric(1.0)}, {}])


def test_rollout_difference():
    rollout = torch.tensor([[0.5, 0.2], [0.9, 0.1]]).log()
    actor = torch.tensor([[0.4, 0.2], [0.9, 0.7]]).log()
    got = rollout_difference_metrics(rollout, actor, torch.tensor([[1, 1], [1, 0]]))
    assert got["training/rollout_probs_diff_valid"] == 1
    assert got["training/rollout_probs_diff_max"] == pytest.approx(0.1, rel=1e-4)
    assert got["training/rollout_probs_diff_mean"] == pytest.approx(0.1 / 3, rel=1e-4)
    assert 0.9 < got["training/rollout_actor_probs_pearson_corr"] <= 1
    assert rollout_difference_metrics(rollout, actor, torch.zeros(2, 2)) == {"training/rollout_probs_diff_valid": 0.0}


def test_sequence_lengths():
    got = sequence_length_metrics([10, 20, 1, 3], [[0, 3], [1, 2]])
    assert got == {
        "global_seqlen/min": 4,
        "global_seqlen/max": 30,
        "global_seqlen/minmax_diff": 26,
        "global_seqlen/balanced_min": 13,
        "global_seqlen/balanced_max": 21,
        "global_seqlen/mean": 17,
    }


def test_variance_proxies_of_a_hand_made_batch():
    got = variance_proxy_metrics(
        advantages=torch.tensor([[1.0, 1, 50], [-2, -2, -2]]),
        old_log_probs=torch.full((2, 3), math.log(0.5)),
        sum_pi_squared=torch.full((2, 3), 0.5),
        response_mask=torch.tensor([[1, 1, 0], [1, 1, 1]]),
        gradient_norm=1.0,
    )
    # w = 1 - 2 x 0.5 + 0.5 = 0.5 a token: W = 1 and 1.5; A = 1 and -2.
    assert got["variance_proxy/expected_w"] == pytest.approx(1.25)
    assert got["variance_proxy/expected_a_squared"] == pytest.approx(2.5)
    assert got["variance_proxy/proxy2_total_power"] == pytest.approx((1 * 1 + 4 * 1.5) / 2)
    assert got["variance_proxy/proxy1_signal_strength"] == 1
    assert got["variance_proxy/proxy3_pure_noise"] == pytest.approx(2.5)
