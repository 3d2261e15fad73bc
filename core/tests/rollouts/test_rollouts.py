"""Sampling parameters and the registry of rollout backends."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.errors import NotRegistered, PluginError
from plugrl.rollouts.registry import ROLLOUTS, get_rollout, register_rollout

pytest.importorskip("torch")

from plugrl.rollouts import RolloutBackend, SamplingParams  # noqa: E402


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_new_tokens", 9),
    ],
)
def test_impossible_parameters_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{"max_new_tokens": 8, field: value})


def test_greedy_and_truncation_are_possible() -> None:
    params = SamplingParams(max_new_tokens=8, temperature=0.0, top_k=-1, top_p=0.9, min_new_tokens=8)
    assert params.n == 1


def test_backends_are_found_by_name_and_checked() -> None:
    members = {name: lambda self, *args: None for name in RolloutBackend.__abstractmethods__}
    complete = type("Complete", (RolloutBackend,), members)
    with ROLLOUTS.temporary():
        register_rollout("made_up")(complete)
        assert get_rollout(" Made_Up ") is complete
        with pytest.raises(NotRegistered, match=r'"made_op".*"made_up"'):
            get_rollout("made_op")
        with pytest.raises(PluginError, match=r"generate.*load_weights"):
            register_rollout("half")(type("Half", (RolloutBackend,), {}))
        with pytest.raises(PluginError, match="RolloutBackend"):
            register_rollout("none")(int)
