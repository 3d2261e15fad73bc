"""What a step gathers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from plugrl.data import PromptRecord
from plugrl.rewards.base import RewardResult
from plugrl.runners.experience import Experience


def scored(*infos: dict[str, Any]) -> Experience:
    """An experience whose responses were judged with these remarks."""
    count = len(infos)
    experience = Experience([PromptRecord(prompt="p")] * count, [0] * count, ["r"] * count, [0] * count, {})
    experience.results = [RewardResult(0.0, info) for info in infos]
    return experience


def test_only_numbers_that_every_response_has_are_components() -> None:
    experience = scored({"a": 1, "b": 0.5, "c": 1.0, "d": "x"}, {"a": True, "c": None, "e": 2.0, "d": 1})
    assert {name: values.tolist() for name, values in experience.reward_components().items()} == {"a": [1.0, 1.0]}
