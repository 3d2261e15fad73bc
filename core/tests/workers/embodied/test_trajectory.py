"""The schema of a rollout: shapes, parts put together, dropped episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from plugrl.errors import UserError
from plugrl.testing.reference import Case, cases
from plugrl.workers.embodied.messages import Outcome, rows_of
from plugrl.workers.embodied.packed import PackedTensors
from plugrl.workers.embodied.recorder import Recorder
from plugrl.workers.embodied.trajectory import Trajectory, TrajectoryError


def trajectory(chunks: int = 3, scenes: int = 2, width: int = 4, numbers: int = 7) -> Trajectory:
    shape = (chunks, scenes, width)
    return Trajectory(
        rewards=torch.rand(shape),
        terminations=torch.zeros(chunks + 1, scenes, width, dtype=torch.bool),
        truncations=torch.zeros(chunks + 1, scenes, width, dtype=torch.bool),
        executed=torch.ones(shape, dtype=torch.bool),
        valid=torch.ones(chunks, scenes, dtype=torch.bool),
        prev_logprobs=torch.rand(*shape, numbers),
        versions=torch.zeros(chunks, scenes, dtype=torch.int64),
        prev_values=torch.rand(chunks + 1, scenes, 1),
        forward_inputs={"states": torch.rand(chunks, scenes, 5), "pixels": torch.rand(chunks, scenes, 2).bfloat16()},
    )


def test_a_sound_one_passes_and_each_wrong_shape_is_named() -> None:
    good = trajectory()
    assert good.check(7) is good
    wrong = {
        "terminations": good.terminations[1:],
        "executed": good.executed[:, :1],
        "valid": good.valid[:2],
        "prev_logprobs": good.prev_logprobs[..., :6],
        "versions": good.versions[:, :1],
        "prev_values": torch.rand(4, 2, 3),
    }
    for name, tensor in wrong.items():
        with pytest.raises(TrajectoryError, match=rf"{name} has shape \[.*expected \["):
            replace(good, **{name: tensor}).check(7)
    with pytest.raises(TrajectoryError, match=r"forward_inputs\['states'\]"):
        replace(good, forward_inputs={"states": torch.rand(2, 3, 5)}).check(7)
    early = good.truncations.clone()
    early[0, 0, 0] = True
    with pytest.raises(TrajectoryError, match="before the first chunk"):
        replace(good, truncations=early).check(7)
    with pytest.raises(TrajectoryError, match="not finite"):
        replace(good, rewards=good.rewards / 0).check(7)


@pytest.mark.parametrize("case", [item for item in cases("schema") if "check" in item.id])
def test_a_wrong_number_of_dimensions_is_named(case: Case) -> None:
    given = case.given
    good = trajectory(scenes=given["B"], width=given["C"], numbers=given["shape"][-1])
    with pytest.raises(ValueError) as caught:
        good.check(given["D"])
    assert all(word in str(caught.value) for word in ("7", "6"))


@pytest.mark.parametrize("case", [item for item in cases("schema") if "lengths" in item.id])
def test_flags_and_values_have_one_entry_more_for_each_pass(case: Case) -> None:
    given, expected = case.given, case.expected
    passes = [trajectory(chunks=given["T"] // given["rollout_epoch"]) for _ in range(given["rollout_epoch"])]
    found = {
        name: sum(getattr(one, name).shape[0] for one in passes)
        for name in ("rewards", "dones", "terminations", "truncations", "prev_values")
    }
    per_pass = given["T"] // given["rollout_epoch"]
    assert found == {name: count - (given["T"] - per_pass * given["rollout_epoch"]) for name, count in expected.items()}


def test_parts_are_put_side_by_side_and_what_does_not_fit_is_named() -> None:
    one, two = trajectory(), trajectory(scenes=3)
    joined = Trajectory.join([one.pack(), two.pack()])
    assert joined.check(7).num_scenes == 5
    assert torch.equal(joined.rewards, torch.cat((one.rewards, two.rewards), 1))
    inputs = joined.forward_inputs["pixels"]
    assert inputs.dtype == torch.bfloat16
    assert torch.equal(inputs[:, 2:], two.forward_inputs["pixels"])
    with pytest.raises(TrajectoryError, match="prev_values is in some parts"):
        Trajectory.join([one.pack(), replace(two, prev_values=None).pack()])
    with pytest.raises(TrajectoryError, match="rewards differs in shape|differs in shape"):
        Trajectory.join([one.pack(), trajectory(chunks=2).pack()])


def test_rows_are_taken_bit_by_bit() -> None:
    tensors = {"a": torch.rand(5, 2).bfloat16(), "b": torch.arange(5), "c": torch.rand(5) > 0.5}
    taken = PackedTensors.pack(tensors).take(np.array([3, 1]))
    for name, tensor in tensors.items():
        assert torch.equal(taken[name], tensor[[3, 1]]) and taken[name].dtype == tensor.dtype


def test_some_scenes_of_an_observation() -> None:
    obs = {"states": torch.arange(6).reshape(3, 2), "task_descriptions": ["a", "b", "c"], "wrist_images": None}
    found = rows_of(obs, torch.tensor([2, 0]))
    assert found["states"].tolist() == [[4, 5], [0, 1]] and found["task_descriptions"] == ["c", "a"]
    assert set(found) == {"states", "task_descriptions"}


# --------------------------------------------------------------------- writing down
def outcome(rewards: list[float], *, terminated: list[int] = (), truncated: list[int] = (), lost: list[int] = ()):  # type: ignore[assignment]
    scenes = len(rewards)
    flags = [torch.zeros(scenes, 1, dtype=torch.bool) for _ in range(2)]
    for flag, rows in zip(flags, (terminated, truncated), strict=True):
        flag[list(rows)] = True
    gone = torch.zeros(scenes, dtype=torch.bool)
    gone[list(lost)] = True
    return Outcome(
        rewards=torch.tensor(rewards)[:, None], terminations=flags[0], truncations=flags[1],
        executed=~gone[:, None], lost=gone,
    )  # fmt: skip


def record(outcomes: list[Outcome], chunks: int | None = None, *, restarts: bool = True) -> Trajectory:
    recorder = Recorder(chunks or len(outcomes), version=3)
    scenes = outcomes[0].rewards.shape[0]
    for chunk, found in enumerate(outcomes):
        recorder.acted(chunk, torch.full((scenes, 1, 2), float(chunk)), torch.full((scenes,), chunk + 0.5),
                       {"choice": torch.full((scenes, 1), chunk)})  # fmt: skip
        recorder.happened(chunk, found, torch.zeros(scenes))
    return recorder.finish(torch.full((scenes, 1), 9.0), restarts=restarts).check(2)


def test_a_flag_stands_one_place_later_than_the_action_that_caused_it() -> None:
    found = record([outcome([1, 2]), outcome([3, 4], terminated=[1]), outcome([5, 6], truncated=[0])])
    assert found.rewards[..., 0].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert found.terminations[..., 0].int().tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert found.truncations[..., 0].int().tolist() == [[0, 0], [0, 0], [0, 0], [1, 0]]
    assert found.prev_values is not None and found.prev_values[:, 0, 0].tolist() == [0.5, 1.5, 2.5, 9.0]
    assert found.versions.unique().tolist() == [3] and found.valid.all()


def test_what_was_not_reached_counts_as_after_the_end() -> None:
    found = record([outcome([1, 1], terminated=[0, 1])], chunks=3, restarts=False)
    assert found.dones[..., 0].int().tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]
    assert found.executed[..., 0].int().tolist() == [[1, 1], [0, 0], [0, 0]]


def test_an_episode_whose_simulator_died_does_not_count_and_its_neighbours_do() -> None:
    """Scene 0 ends an episode, loses the next one, and goes on; scene 1 is untouched."""
    steps = [
        outcome([1, 1]), outcome([1, 1], truncated=[0]), outcome([1, 1]), outcome([0, 1], lost=[0]), outcome([1, 1])
    ]  # fmt: skip
    found = record(steps)
    assert found.valid.int().tolist() == [[1, 1], [1, 1], [0, 1], [0, 1], [1, 1]]
    assert found.terminations[4, 0, 0] and not found.truncations[4, 0, 0], "the estimator must not look beyond"
    alone = record(steps, restarts=False)
    assert alone.valid.int().tolist() == [[0, 1]] * 5, "without restarts the scene has no whole episode"


def test_inputs_of_a_policy_must_be_tensors() -> None:
    with pytest.raises(UserError, match="'text' is list"):
        Recorder(2, 0).acted(0, torch.zeros(1, 1, 1), None, {"text": ["a"]})
