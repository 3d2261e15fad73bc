"""Sharing out scenes, and the seeds of their episodes."""

from __future__ import annotations

import pytest

from plugrl.testing.reference import Case, cases
from plugrl.workers.embodied.scenes import FIRST_TRAINING_SEED, Scenes, acting_seed, every_slice, rollout_of


def test_every_scene_is_in_one_slice_and_every_slice_has_one_that_acts() -> None:
    scenes = Scenes(24, workers=2, stages=3, group=2)
    covered = [scenes.first(index) + i for index in range(scenes.slices) for i in range(scenes.in_slice)]
    assert covered == list(range(24))
    assert [scenes.worker_of(index) for worker in range(2) for index in scenes.slices_of(worker)] == [0] * 3 + [1] * 3
    for rollouts in (1, 2, 5):
        acting = [index for worker in range(rollouts) for index in every_slice(scenes, worker, rollouts)]
        assert sorted(acting) == list(range(scenes.slices))
        assert all(rollout_of(index, rollouts) < rollouts for index in range(scenes.slices))


def test_seeds_depend_on_run_step_pass_and_group_and_on_nothing_else() -> None:
    def all_seeds(workers: int, stages: int, **key: int) -> list[int]:
        scenes = Scenes(16, workers, stages, group=4)
        return [seed for index in range(scenes.slices) for seed in scenes.training_seeds(index, **key)]

    key = {"seed": 1, "step": 2, "epoch": 0}
    first = all_seeds(1, 1, **key)
    assert first == all_seeds(2, 2, **key) == all_seeds(4, 1, **key)
    assert [len(set(first[start : start + 4])) for start in range(0, 16, 4)] == [1] * 4 and len(set(first)) == 4
    others = [all_seeds(1, 1, **{**key, name: 7}) for name in key]
    assert all(set(first).isdisjoint(other) for other in others)
    assert min(first) >= FIRST_TRAINING_SEED and max(first) < 2**52


def test_evaluations_have_the_same_seeds_wherever_scenes_are_and_another_one_for_each_episode() -> None:
    found = [
        seed for epoch in range(2) for index in range(4)
        for seed in Scenes(8, 2, 2).evaluation_seeds(index, seed=100, epoch=epoch)
    ]  # fmt: skip
    assert found == list(range(100, 116))
    assert max(found) < FIRST_TRAINING_SEED


@pytest.mark.parametrize("case", [item for item in cases("env_behaviour") if "group_reset" in item.id])
def test_members_of_a_group_begin_alike(case: Case) -> None:
    given = case.given
    scenes = Scenes(given["num_envs"], 1, 1, given["group_size"])
    seeds = scenes.training_seeds(0, seed=0, step=1, epoch=0)
    names = dict(zip(dict.fromkeys(seeds), given["reset_ids"], strict=True))
    assert [names[seed] for seed in seeds] == case.expected["env_reset_ids"]


def test_draws_of_slices_and_passes_differ() -> None:
    numbers = [(step, epoch, index) for step in range(3) for epoch in range(3) for index in range(3)]
    assert len({acting_seed(1, *three) for three in numbers}) == len(numbers)
