"""Random numbers, truncation and draws."""

from __future__ import annotations

import math

import pytest
import torch

from plugrl.rollouts.base import SamplingParams
from plugrl_rollout_hf.sampling import choose, draw, truncate, uniforms


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> float:
    """Return the statistic divided by its degrees of freedom."""
    expected = probabilities * counts.sum()
    used = expected > 0
    return float((((counts - expected) ** 2)[used] / expected[used]).sum() / max(1, int(used.sum()) - 1))


def test_draws_depend_on_seed_sample_and_step_alone() -> None:
    table = uniforms([5, 5, 9, 2**70 + 5], [0, 1, 0, 0], 6)
    assert torch.equal(table[1:2], uniforms([5], [1], 6))
    assert torch.equal(table[:, :3], uniforms([5, 5, 9, 2**70 + 5], [0, 1, 0, 0], 3))
    assert table[:3].unique().numel() == 18
    assert torch.equal(uniforms([-1], [0], 2), uniforms([2**64 - 1], [0], 2))


def test_draws_are_uniform_and_unrelated() -> None:
    table = uniforms(range(400), [index % 4 for index in range(400)], 256)
    assert 0.0 < table.min() and table.max() < 1.0
    counts = torch.histc(table.float(), bins=64, min=0, max=1)
    assert chi_square(counts, torch.full((64,), 1 / 64)) < 1.6
    for axis in (0, 1):
        pairs = torch.stack(
            (table.narrow(axis, 1, table.shape[axis] - 1), table.narrow(axis, 0, table.shape[axis] - 1))
        )
        assert abs(torch.corrcoef(pairs.flatten(1))[0, 1]) < 0.01


@pytest.mark.parametrize("vocab_size", [7, 5000])
def test_draws_follow_the_distribution(vocab_size) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(vocab_size, generator=generator) ** 3
    weights[:: max(3, vocab_size // 40)] = 0.0
    count = 40_000
    tokens = torch.cat(
        [
            draw(weights.expand(2000, -1), uniforms(range(first, first + 2000), [0] * 2000, 1)[:, 0])
            for first in range(0, count, 2000)
        ]
    )
    assert (weights[tokens] > 0).all()
    bins = min(vocab_size, 50)
    group = torch.arange(vocab_size) * bins // vocab_size
    shares = torch.zeros(bins).index_add(0, group, weights / weights.sum())
    counts = torch.bincount(group[tokens], minlength=bins).float()
    assert chi_square(counts, shares) < 2.2


def test_a_draw_at_the_edge_never_meets_a_weight_of_zero() -> None:
    weights = torch.zeros(2, 3000)
    weights[:, [5, 700]] = torch.tensor([1e-30, 1.0])
    edges = torch.tensor([2.0**-49, 1 - 2.0**-49], dtype=torch.float64)
    assert draw(weights, edges).tolist() == [700, 700]
    assert draw(weights[:, :800], edges).tolist() == [700, 700]


def test_top_k_keeps_the_largest() -> None:
    weights = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.4, 0.1]])
    assert (truncate(weights, 2, 1.0) > 0).tolist() == [[False, True, False, True], [True, True, True, False]]
    assert torch.equal(truncate(weights, -1, 1.0), weights)
    assert torch.equal(truncate(weights, 9, 1.0), weights)


def test_top_p_keeps_the_smallest_set_that_holds_p() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    assert (truncate(weights, -1, 0.5) > 0).tolist() == [[True, False, False, False]]
    assert (truncate(weights, -1, 0.51) > 0).tolist() == [[True, True, False, False]]
    # Equal weights stay or go together.
    assert (truncate(weights, -1, 0.8) > 0).tolist() == [[True, True, True, True]]
    # After top-k: of 0.5 and 0.25, 0.6 of what is left lies in the first.
    assert (truncate(weights, 2, 0.6) > 0).tolist() == [[True, False, False, False]]


def test_top_p_looks_as_far_as_it_must() -> None:
    weights = torch.rand(3, 5000, generator=torch.Generator().manual_seed(1)).softmax(-1)
    for top_p in (0.01, 0.5, 0.999):
        kept = truncate(weights, -1, top_p)
        ordered = weights.sort(descending=True).values.double()
        wanted = ((ordered.cumsum(-1) - ordered) < top_p * ordered.sum(-1, keepdim=True)).sum(-1)
        assert (kept > 0).sum(-1).tolist() == wanted.tolist()


def test_log_probs_are_those_before_truncation() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(2))
    draws = torch.rand(4, dtype=torch.float64)
    tokens, log_probs = choose(logits, draws, SamplingParams(max_new_tokens=1, temperature=0.5, top_k=2, top_p=0.9))
    wanted = torch.log_softmax(logits / 0.5, -1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(log_probs, wanted)


def test_greedy_takes_the_largest_that_is_allowed() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    params = SamplingParams(max_new_tokens=1, temperature=0.0)
    token, log_prob = choose(logits, None, params)
    assert token.tolist() == [1]
    assert math.isclose(log_prob.item(), torch.log_softmax(logits, -1)[0, 1].item(), rel_tol=1e-6)
    assert choose(logits, None, params, torch.tensor([1]))[0].tolist() == [2]
