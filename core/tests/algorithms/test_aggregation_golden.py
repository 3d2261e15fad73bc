"""Reference values and gradients of the aggregation and of masked statistics (table 11.3)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from plugrl.algorithms import aggregate, masked_mean, masked_var, whiten  # noqa: E402

NAN = float("nan")
L1, M1 = [[1, 2, 3], [4, 5, 6]], [[1, 1, 0], [1, 1, 1]]
L1_NAN = [[1, 2, NAN], [4, 5, 6]]
L2 = [[0.5, -1, 2, 4], [3, 3, 3, 3], [-2, 8, 0.25, 1], [1, 1, 1, 1]]
M2 = [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1], [1, 0, 0, 0]]
L3 = [[1, 2, 3, 4], [2, 2, 0, 0], [-1, 0.5, 1.5, 0], [4, 0, 0, 0]]
M3 = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]

SEVENTH, NINTH, TWELFTH, THIRD = 0.142857, 0.111111, 0.083333, 0.333333


def per_row(first, second):
    return [[first, first, 0], [second, second, second]]


CASES = [
    (L1, M1, "token-mean", {}, 3.6, per_row(0.2, 0.2)),
    (L1, M1, "token-sum", {}, 18, per_row(1, 1)),
    (L1, M1, "seq-mean-token-sum", {}, 9, per_row(0.5, 0.5)),
    (L1, M1, "token-sum", {"dp_size": 2}, 36, per_row(2, 2)),
    (L1, M1, "token-mean", {"dp_size": 2, "batch_num_tokens": 20}, 1.8, per_row(0.1, 0.1)),
    (L1, M1, "seq-mean-token-sum", {"dp_size": 2, "global_batch_size": 8}, 4.5, per_row(0.25, 0.25)),
    (L1, M1, "seq-mean-token-mean", {"dp_size": 2, "global_batch_size": 8}, 1.625, per_row(0.125, TWELFTH)),
    (L1, M1, "seq-mean-token-sum-norm", {"loss_scale_factor": 10}, 0.9, per_row(0.05, 0.05)),
    (
        L2,
        M2,
        "token-mean",
        {},
        0.25,
        [[SEVENTH] * 3 + [0], [0] * 4, [SEVENTH, 0, SEVENTH, SEVENTH], [SEVENTH, 0, 0, 0]],
    ),
    (
        L2,
        M2,
        "seq-mean-token-mean",
        {},
        0.416667,
        [[NINTH] * 3 + [0], [0] * 4, [NINTH, 0, NINTH, NINTH], [THIRD, 0, 0, 0]],
    ),
    (
        L2,
        M2,
        "seq-mean-token-sum-norm",
        {},
        0.145833,
        [[TWELFTH] * 3 + [0], [0] * 4, [TWELFTH, 0, TWELFTH, TWELFTH], [TWELFTH, 0, 0, 0]],
    ),
    (L1_NAN, M1, "token-mean", {}, 3.6, per_row(0.2, 0.2)),
    (L1_NAN, M1, "seq-mean-token-sum", {}, 9, per_row(0.5, 0.5)),
]


@pytest.mark.parametrize(("values", "mask", "mode", "counts", "loss", "gradient"), CASES)
def test_value_and_gradient(values, mask, mode, counts, loss, gradient):
    tensor = torch.tensor(values, dtype=torch.float32, requires_grad=True)
    got = aggregate(tensor, torch.tensor(mask), mode, **counts)
    got.backward()
    torch.testing.assert_close(got.detach(), torch.tensor(loss, dtype=torch.float32), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tensor.grad, torch.tensor(gradient, dtype=torch.float32), rtol=1e-5, atol=1e-5)


SPLITS = [
    ("token-mean", [[0, 1], [2, 3]], 1, [1.4, 0.5], 1.9),
    ("token-mean", [[0], [1, 2], [3]], 2, [2, 1, 0.8], 1.9),
    ("seq-mean-token-mean", [[0, 3], [1, 2]], 2, [3.25, 1.166667], 2.208333),
    ("token-sum", [[0, 1], [2, 3]], 2, [28, 10], 19),
]


@pytest.mark.parametrize(("mode", "rows", "dp_size", "parts", "whole"), SPLITS)
def test_parts_over_dp_size_add_up_to_the_whole(mode, rows, dp_size, parts, whole):
    values, mask = torch.tensor(L3), torch.tensor(M3)
    counts = {"dp_size": dp_size, "batch_num_tokens": 10, "global_batch_size": 4}
    got = [float(aggregate(values[part], mask[part], mode, **counts)) for part in rows]
    assert got == pytest.approx(parts, rel=1e-5)
    assert sum(got) / dp_size == pytest.approx(whole, rel=1e-5)
    assert float(aggregate(values, mask, mode)) == pytest.approx(whole, rel=1e-5)


def test_errors():
    values, mask = torch.tensor(L1), torch.tensor(M1)
    with pytest.raises(ValueError, match="batch_num_tokens"):
        aggregate(values, mask, "token-mean", dp_size=2)
    with pytest.raises(ValueError, match="global_batch_size"):
        aggregate(values, mask, "seq-mean-token-mean", dp_size=2)
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        aggregate(values, mask, "mean")


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_a_batch_without_valid_tokens_has_loss_zero(mode):
    values = torch.full((2, 3), NAN, requires_grad=True)
    loss = aggregate(values, torch.zeros(2, 3), mode)
    loss.backward()
    assert loss.item() == 0
    assert not values.grad.any()


STATISTICS, STATISTICS_MASK = [[1, 2, 30], [4, 50, 6]], [[1, 1, 0], [1, 0, 1]]


def test_masked_statistics():
    values, mask = torch.tensor(STATISTICS, dtype=torch.float32), torch.tensor(STATISTICS_MASK)
    assert float(masked_mean(values, mask)) == pytest.approx(3.25)
    assert float(masked_var(values, mask)) == pytest.approx(4.916667, rel=1e-5)
    whitened = [[-1.014722, -0.563734, 12.063918], [0.338241, 21.08367, 1.240216]]
    torch.testing.assert_close(whiten(values, mask), torch.tensor(whitened), rtol=1e-5, atol=1e-5)
    unshifted = [[2.235278, 2.686265, 15.313918], [3.588241, 24.33367, 4.490216]]
    torch.testing.assert_close(whiten(values, mask, shift_mean=False), torch.tensor(unshifted), rtol=1e-5, atol=1e-5)


def test_variance_needs_valid_tokens():
    with pytest.raises(ValueError, match="0 valid token"):
        masked_var(torch.ones(2, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="1 valid token"):
        whiten(torch.ones(1, 2), torch.tensor([[1, 0]]))
