"""What a step gathers, and what the driver keeps between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from plugrl.algorithms import make_kl_controller
from plugrl.data import PromptRecord, PromptSampler
from plugrl.errors import CheckpointError
from plugrl.rewards.base import RewardResult
from plugrl.runners.experience import Experience
from plugrl.runners.state import check_state, load_state, save_state


def scored(*infos: dict[str, Any]) -> Experience:
    """An experience whose responses were judged with these remarks."""
    count = len(infos)
    experience = Experience([PromptRecord(prompt="p")] * count, [0] * count, ["r"] * count, [0] * count, {})
    experience.results = [RewardResult(0.0, info) for info in infos]
    return experience


def test_only_numbers_that_every_response_has_are_components() -> None:
    experience = scored({"a": 1, "b": 0.5, "c": 1.0, "d": "x"}, {"a": True, "c": None, "e": 2.0, "d": 1})
    assert {name: values.tolist() for name, values in experience.reward_components().items()} == {"a": [1.0, 1.0]}


def test_a_penalty_counts_in_the_reward_and_is_told_beside_it() -> None:
    experience = scored({"acc": 1.0}, {"acc": 0.0})
    experience.tensors["response_mask"] = torch.tensor([[1, 1, 0], [1, 1, 1]])
    experience.add_penalty("overlong_penalty", torch.tensor([0.0, -0.5]))
    assert [result.score for result in experience.results] == [0.0, -0.5]
    assert experience.tensors["token_rewards"].tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, -0.5]]
    assert experience.reward_components()["overlong_penalty"].tolist() == [0.0, -0.5]
    assert experience.informative_rows().tolist() == [0, 1]


def test_a_checkpoint_of_another_kind_of_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    save_state(tmp_path, step=2, sampler_state=PromptSampler(8, 2).state_dict(), kl_controller=make_kl_controller())
    check_state(tmp_path, sampler=PromptSampler(8, 4), uses_critic=False)
    with pytest.raises(CheckpointError, match=r"^trainer\.resume: .* without a critic"):
        check_state(tmp_path, sampler=PromptSampler(8, 2), uses_critic=True)
    with pytest.raises(CheckpointError, match=r"^trainer\.resume: .*num_rows was 8 .* is 9 now"):
        check_state(tmp_path, sampler=PromptSampler(9, 2), uses_critic=False)


@pytest.mark.parametrize(("kind", "expected"), [("fixed", 0.5), ("adaptive", 0.25)])
def test_a_resumed_run_has_the_weight_that_was_configured_or_the_one_that_was_steered(
    kind: str, expected: float, tmp_path: Path
) -> None:
    sampler, saved = PromptSampler(8, 2), make_kl_controller(kind, kl_coef=0.25)
    save_state(tmp_path, step=2, sampler_state=sampler.state_dict(), kl_controller=saved)
    resumed = make_kl_controller(kind, kl_coef=0.5)
    assert load_state(tmp_path, sampler=sampler, kl_controller=resumed) == 2
    assert resumed.value == expected
