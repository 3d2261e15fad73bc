"""The distribution over action tokens, which acting and training share."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.errors import ConfigError
from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.sampling import Sampling, bin_logprobs, draw, entropy, logprob_of, sampling_of
from plugrl_models_openvla.tokens import ActionTokens

EIGHT = ActionTokens(limit=20, n_bins=8)


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, 24, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("case", cases("process_logits"))
def test_logits_are_processed_as_in_the_reference(case: Case) -> None:
    tokens = ActionTokens(case.given["vocab_limit"], case.given["n_bins"])
    sampling = Sampling(**{key: case.given[key] for key in ("temperature", "top_k", "top_p") if key in case.given})
    found = bin_logprobs(torch.tensor(case.given["logits"]), tokens, sampling)
    answer = {"logprobs": found, "entropy": entropy(found)}
    if "token" in case.given:
        answer["logprob"] = logprob_of(found, torch.tensor(case.given["token"]), tokens)
    case.check(answer)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.05, 5.0), st.integers(-1, 10), st.floats(0.05, 1.0), st.integers(0, 1000), st.booleans()
)  # fmt: skip
def test_what_was_drawn_has_the_same_probability_when_it_is_recomputed(
    temperature: float, top_k: int, top_p: float, seed: int, cut: bool
) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    values = logits(5, 3, seed=seed)
    acted = bin_logprobs(values, EIGHT, sampling)
    ids = draw(acted, EIGHT, generator=torch.Generator().manual_seed(seed))
    assert ((ids >= EIGHT.first) & (ids < EIGHT.limit)).all()
    again = bin_logprobs(values[..., EIGHT.first : EIGHT.limit] if cut else values, EIGHT, sampling, keep=ids)
    before, after = logprob_of(acted, ids, EIGHT), logprob_of(again, ids, EIGHT)
    assert torch.equal(before, after) and torch.isfinite(before).all() and (before <= 0).all()
    torch.testing.assert_close(acted.exp().sum(-1), torch.ones(5, 3))
    kept = (acted > -math.inf).sum(-1)
    assert (kept >= 1).all() and (not 0 < top_k < 8 or (kept <= top_k).all())


def test_a_token_that_dropped_out_of_the_top_still_has_a_probability_and_a_gradient() -> None:
    values = logits(1).requires_grad_()
    worst = values[0, EIGHT.first : EIGHT.limit].argmin().view(1) + EIGHT.first
    for sampling in (Sampling(top_k=2), Sampling(top_p=0.3)):
        dropped = bin_logprobs(values, EIGHT, sampling)
        assert logprob_of(dropped, worst, EIGHT) == -math.inf
        kept = logprob_of(bin_logprobs(values, EIGHT, sampling, keep=worst), worst, EIGHT)
        (slope,) = torch.autograd.grad(kept.sum() + entropy(dropped).sum(), values)
        assert torch.isfinite(kept).all() and torch.isfinite(slope).all() and slope[0, worst] != 0


def test_the_gradients_agree_with_finite_differences() -> None:
    values = logits(2).double()[:, EIGHT.first : EIGHT.limit]
    ids = torch.tensor([12, 19])
    for sampling in (Sampling(1.7), Sampling(0.6, top_k=3), Sampling(1.3, 6, 0.8)):
        leaf = values.clone().requires_grad_()

        def score(x: torch.Tensor, sampling: Sampling = sampling) -> torch.Tensor:
            found = bin_logprobs(x, EIGHT, sampling, keep=ids)
            return logprob_of(found, ids, EIGHT).sum() + 0.3 * entropy(found).sum()

        (slope,) = torch.autograd.grad(score(leaf), leaf)
        direction = torch.randn(values.shape, generator=torch.Generator().manual_seed(1)).double()
        step = 1e-5
        numeric = (score(values + step * direction) - score(values - step * direction)) / (2 * step)
        assert numeric.item() == pytest.approx((slope * direction).sum().item(), abs=1e-6)


def test_greedy_takes_the_likeliest_token_at_temperature_one() -> None:
    values = logits(4)
    found = bin_logprobs(values, EIGHT, Sampling(temperature=0))
    assert torch.equal(found, bin_logprobs(values, EIGHT, Sampling()))
    assert torch.equal(draw(found, EIGHT, greedy=True), values[:, 12:20].argmax(-1) + 12)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    found = bin_logprobs(logits(1), EIGHT, Sampling(2.0)).expand(20000, -1)
    ids = draw(found, EIGHT, generator=torch.Generator().manual_seed(0))
    share = torch.bincount(ids - EIGHT.first, minlength=8) / 20000
    torch.testing.assert_close(share, found[0].exp(), atol=0.015, rtol=0)


def test_half_precision_logits_are_processed_in_full_precision() -> None:
    found = bin_logprobs(logits(2).bfloat16(), EIGHT, Sampling(1.3))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(2))


@pytest.mark.parametrize(
    "keys, text",
    [({"temperature": -1.0}, "temperature: -1.0"), ({"top_k": -2}, "top_k: -2"), ({"top_p": 0.0}, "top_p: 0.0"),
     ({"temperature": math.nan}, "temperature: nan"), ({"top_p": 1.5}, "top_p: 1.5")],
)  # fmt: skip
def test_mistakes_are_named(keys: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Sampling(**keys)


@pytest.mark.parametrize("case", cases("sampling_kwargs"))
def test_each_mode_has_its_own_sampling(case: Case) -> None:
    sampling, temperature = sampling_of(**case.given)
    case.check({"do_sample": not sampling.is_greedy, "temperature": temperature})
