"""Actions as tokens, and the scale of actions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.errors import ConfigError, DataError
from plugrl.testing.reference import Case, cases
from plugrl_models_openvla.norm_statistics import NormStatistics, resolve_unnorm_key
from plugrl_models_openvla.tokens import ActionTokens


def tokens_of(case: Case) -> ActionTokens:
    return ActionTokens.of(case.given["text_vocab"], case.given["pad_multiple"], case.given.get("n_bins", 256))


@pytest.mark.parametrize("case", cases("tokens_to_actions"))
def test_tokens_stand_for_the_values_of_the_reference(case: Case) -> None:
    tokens, ids = tokens_of(case), torch.tensor(case.given["tokens"])
    answer = {"index": tokens.index(ids), "normalized": tokens.decode(ids)}
    if "low" in case.given:
        stats = {"q01": case.given["low"], "q99": case.given["high"], "mask": case.given["mask"]}
        answer["actions"] = NormStatistics.read(stats).unnormalise(answer["normalized"])
    case.check(answer)


@pytest.mark.parametrize("case", cases("actions_to_tokens"))
def test_actions_become_the_tokens_of_the_reference(case: Case) -> None:
    case.check({"tokens": tokens_of(case).encode(torch.tensor(case.given["actions"]))})


@pytest.mark.parametrize("case", cases("oft_unnormalise"))
def test_chunks_of_actions_get_their_scale_back(case: Case) -> None:
    stats = NormStatistics.read(case.given["stats"], bounds=case.given["mode"], epsilon=1e-8)
    case.check({"actions": stats.unnormalise(torch.tensor(case.given["normalized"]))})


@pytest.mark.parametrize("case", cases("proprio_normalise"))
def test_proprioception_is_scaled_and_clipped(case: Case) -> None:
    stats = NormStatistics.read({"q01": case.given["low"], "q99": case.given["high"]})
    case.check({"out": stats.normalise(torch.tensor(case.given["x"]))})


@pytest.mark.parametrize("case", cases("unnorm_key"))
def test_the_data_set_is_found_or_all_are_named(case: Case) -> None:
    norm_stats = {key: {} for key in case.given["keys"]}
    suffix = "_no_noops" if case.given.get("variant") == "oft" else None
    with case.outcome():
        case.check({"key": resolve_unnorm_key(norm_stats, case.given["unnorm_key"], suffix)})


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 300), st.data())
def test_every_token_but_the_lowest_comes_back_from_its_value(n_bins: int, data: st.DataObject) -> None:
    tokens = ActionTokens(limit=1000, n_bins=n_bins)
    ids = torch.tensor(data.draw(st.lists(st.integers(tokens.first + 1, tokens.limit - 1), min_size=1, max_size=8)))
    assert torch.equal(tokens.encode(tokens.decode(ids)), ids)
    assert tokens.decode(torch.tensor(tokens.first)) == tokens.decode(torch.tensor(tokens.first + 1))


def test_scaling_and_back_loses_nothing_and_leaves_masked_dimensions_alone() -> None:
    stats = NormStatistics.read({"q01": [-2.0, 0.0, 5.0], "q99": [2.0, 1.0, 5.0], "mask": [True, False, True]})
    actions = torch.tensor([[1.5, 0.25, 5.0], [-2.0, 1.0, 5.0]])
    scaled = stats.normalise(actions)
    assert torch.equal(scaled[:, 1], actions[:, 1])
    assert (scaled[:, 2] == 0).all(), "a dimension that never changes is 0"
    torch.testing.assert_close(stats.unnormalise(scaled), actions)
    assert stats.normalise(torch.tensor([9.0, 9.0, 5.0]))[0] == 1, "values beyond the bounds are clipped"


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.action_dim: values of 6 dimensions.*statistics of 7"):
        NormStatistics.read({"q01": [0.0] * 7, "q99": [1.0] * 7}).unnormalise(torch.zeros(2, 6))
    with pytest.raises(ConfigError, match="Did you mean \"bridge_orig\""):
        resolve_unnorm_key({"bridge_orig": {}}, "bridge_org")
    with pytest.raises(ConfigError, match="no statistics of 'proprio'. It has: action"):
        NormStatistics.of({"a": {"action": {}}}, None, kind="proprio")
    with pytest.raises(ConfigError, match="q99 is missing"):
        NormStatistics.read({"q01": [0.0]})
    with pytest.raises(ConfigError, match="action_norm: 'q98' is none of bounds, bounds_q99"):
        NormStatistics.read({}, bounds="q98")
    with pytest.raises(ConfigError, match="2, 2 and 1"):
        NormStatistics.read({"q01": [0.0, 0.0], "q99": [1.0, 1.0], "mask": [True]})
    with pytest.raises(ConfigError, match="no norm_stats"):
        resolve_unnorm_key({}, None)
    with pytest.raises(ConfigError, match="n_action_bins: 256"):
        ActionTokens(limit=100)
    with pytest.raises(DataError, match="NaN"):
        ActionTokens(limit=1000).encode(torch.tensor([float("nan")]))
