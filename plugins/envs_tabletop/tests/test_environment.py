"""What the tables do: the contract of the core, determinism, the expert, chance, and the rewards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugrl_envs_tabletop.config import TabletopConfig
from plugrl_envs_tabletop.env import TabletopEnv
from plugrl_envs_tabletop.words import TASKS

ALL = ("reach", "push", "pick_place")


def build(num_envs: int, **settings) -> TabletopEnv:
    return TabletopEnv(TabletopConfig(num_envs=num_envs, image_size=16, **settings))


def success_of(env: TabletopEnv, act) -> float:
    """Share of solved episodes, one a scene, of a policy ``act(env)``."""
    env.reset(seed=1000)
    for _ in range(env.max_episode_steps):
        result = env.step(act(env))
    return float(result.success_once.float().mean())


def random_actions(env: TabletopEnv) -> torch.Tensor:
    return torch.rand(env.num_envs, env.action_dim, generator=random_actions.generator) * 2 - 1


random_actions.generator = torch.Generator().manual_seed(0)


def centre_actions(env: TabletopEnv) -> torch.Tensor:
    """What a blind policy learns from demonstrations: go to where things are on average."""
    actions = torch.zeros(env.num_envs, env.action_dim)
    hand = torch.from_numpy(env.scenes.hand[:, :2])
    actions[:, :2] = (-hand / env.config.step_size).clamp(-1, 1)
    return actions


@pytest.mark.parametrize(("task", "split"), [("reach", "seen"), ("push", "seen"), ("pick_place", "unseen")])
def test_the_expert_solves_every_task(task: str, split: str) -> None:
    env = build(400, tasks=(task,), split=split, auto_reset=False)
    assert success_of(env, TabletopEnv.expert_actions) >= 0.97


def test_the_expert_recovers_from_slips() -> None:
    env = build(300, tasks=("reach", "pick_place"), auto_reset=False, action_noise=0.3)
    assert success_of(env, TabletopEnv.expert_actions) >= 0.97
    flat = build(300, tasks=("pick_place",), height=False, auto_reset=False)
    assert flat.action_dim == 3 and success_of(flat, TabletopEnv.expert_actions) >= 0.97


@pytest.mark.parametrize("task", ALL)
def test_chance_is_low(task: str) -> None:
    env = build(300, tasks=(task,), auto_reset=False)
    assert success_of(env, random_actions) <= 0.1
    assert success_of(env, centre_actions) <= 0.1


def test_who_follows_another_instruction_fails() -> None:
    """An expert that goes to the object the swapped instruction names."""
    env = build(300, auto_reset=False, swap_instructions=True)

    def misled(env: TabletopEnv) -> torch.Tensor:
        target = env.scenes.target.copy()
        env.scenes.target[:] = env.scenes.named_object
        actions = env.expert_actions()
        env.scenes.target[:] = target
        return actions

    assert success_of(env, misled) == 0.0
    assert success_of(env, TabletopEnv.expert_actions) >= 0.97


def test_episodes_are_counted_by_task_and_by_split() -> None:
    env = build(60, tasks=ALL, split="all", holdout=("red",), refer="pair", auto_reset=False)
    texts = env.reset(seed=0)[0]["task_descriptions"]
    for index, text in enumerate(texts):
        label = env.book.record(index).label
        word = {"reach": "reach", "push": "push", "pick_place": "pick up"}[label.task]
        assert text.startswith(word) and ("the red" in text.split(" zone")[0].split(" to ")[0].split(" and ")[0]) == (
            label.split == "unseen"
        ), text
    assert {env.book.record(index).label.split for index in range(60)} == {"seen", "unseen"}


def test_an_episode_depends_on_its_seed_alone() -> None:
    """The same seeds in other company, in other places, with other scenes at other times: the same frames."""
    many = build(7, tasks=ALL, wrist_camera=True, front_camera=True, action_noise=0.2, max_episode_steps=5)
    few = build(2, tasks=ALL, wrist_camera=True, front_camera=True, action_noise=0.2, max_episode_steps=5)
    many.reset(seed=range(20, 27))
    few.reset(seed=[25, 21])
    actions = torch.linspace(-1, 1, 9 * 7 * 4).reshape(9, 7, 4)
    for step in range(9):
        one, other = many.step(actions[step]), few.step(actions[step][[5, 1]])
        for name in ("main_images", "wrist_images", "extra_view_images", "states"):
            assert torch.equal(one.obs[name][[5, 1]], other.obs[name]), name
        assert [one.obs["task_descriptions"][i] for i in (5, 1)] == other.obs["task_descriptions"]
        assert torch.equal(one.rewards[[5, 1]], other.rewards)


def test_scenes_that_stand_still_do_not_move() -> None:
    env = build(6, tasks=ALL, auto_reset=False)
    env.reset(seed=0)
    before = env.scenes.rows(np.arange(6))
    active = np.array([True, False] * 3)
    env.advance_scenes(np.full((6, 4), 0.7, np.float32), active)
    for name in ("hand", "objects", "steps", "on_goal", "on_other", "closed", "held"):
        assert (getattr(env.scenes, name)[~active] == getattr(before, name)[~active]).all(), name
    assert (env.scenes.steps[active] == 1).all()


def test_rewards_say_what_was_gained() -> None:
    env = build(50, auto_reset=False)
    env.reset(seed=3)
    start = np.linalg.norm(env.scenes.target_places() - env.scenes.hand[:, :2], axis=1)
    total = torch.zeros(50)
    for _ in range(12):
        total += env.step(env.expert_actions()).rewards
    end = np.linalg.norm(env.scenes.target_places() - env.scenes.hand[:, :2], axis=1)
    torch.testing.assert_close(total, torch.from_numpy(1.0 + start - end).float(), atol=1e-5, rtol=0)
    sparse = build(50, auto_reset=False, reward="sparse", ignore_terminations=True)
    sparse.reset(seed=3)
    rewards = torch.stack([sparse.step(sparse.expert_actions()).rewards for _ in range(12)])
    assert (rewards.sum(0) == 1.0).all() and ((rewards == 0) | (rewards == 1)).all()


def test_a_wrong_object_ends_the_episode_where_asked() -> None:
    for wrong_ends in (True, False):
        env = build(40, auto_reset=False, wrong_ends=wrong_ends)
        env.reset(seed=0)
        other = (env.scenes.target + 1) % 3
        ended = torch.zeros(40, dtype=torch.bool)
        for _ in range(12):
            way = env.scenes.objects[np.arange(40), other] - env.scenes.hand[:, :2]
            result = env.step(torch.from_numpy(way / 0.3).clamp(-1, 1).float())
            ended |= result.terminations
        assert not result.success_once.any() and ended.all() == wrong_ends, wrong_ends


def test_objects_are_carried_and_pushed() -> None:
    env = build(60, tasks=("pick_place", "push"), auto_reset=False)
    env.reset(seed=4)
    start = env.scenes.target_places().copy()
    for _ in range(20):
        env.step(env.expert_actions())
    moved = np.linalg.norm(env.scenes.target_places() - start, axis=1)
    rest = np.linalg.norm(env.scenes.target_places() - env.scenes.goal_places(), axis=1)
    assert moved.min() > 0.1 and np.quantile(rest, 0.95) <= env.config.success_radius
    lifted = env.scenes.task == TASKS.index("push")
    assert (env.scenes.hand[lifted, 2] == 0).all()


def test_a_far_object_is_not_grasped() -> None:
    env = build(20, tasks=("pick_place",), distractors=0, auto_reset=False)
    env.reset(seed=2)
    env.step(torch.tensor([[0.0, 0.0, -1.0, -1.0]]).repeat(20, 1))
    env.step(torch.tensor([[0.0, 0.0, -1.0, 1.0]]).repeat(20, 1))
    near = np.linalg.norm(env.scenes.target_places() - env.scenes.hand[:, :2], axis=1) <= env.config.object_radius
    assert ((env.scenes.held >= 0) == near).all()


def test_more_entries_of_an_action_have_no_effect() -> None:
    wide, plain = build(8, action_dim=7), build(8)
    wide.reset(seed=1)
    plain.reset(seed=1)
    actions = torch.linspace(-1, 1, 56).reshape(8, 7)
    assert torch.equal(wide.step(actions).obs["main_images"], plain.step(actions[:, :2]).obs["main_images"])
    assert wide.expert_actions().shape == (8, 7)


def test_states_and_pictures() -> None:
    env = build(3, tasks=ALL)
    obs, _ = env.reset(seed=0)
    assert obs["states"].shape == (3, 5) and obs["states"].dtype == torch.float32
    assert env.render(1).shape == (128, 128, 3) and env.render(1).float().std() > 5
