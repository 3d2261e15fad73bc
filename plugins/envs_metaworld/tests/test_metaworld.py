"""Meta-World: seeds, states, pictures, experts, success, and what is said where there is no OpenGL."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plugrl.envs import VecEnv, make_env
from plugrl.errors import ConfigError, MissingDependency
from plugrl.plugins import load_plugins
from plugrl_envs_metaworld import graphics
from plugrl_envs_metaworld.scene import Scene
from plugrl_envs_metaworld.tasks import INSTRUCTIONS

load_plugins()
graphics.import_mujoco(pictures=False)  # before anything else imports it: it chooses its OpenGL only once
needs_opengl = pytest.mark.skipif(not graphics.has_osmesa(), reason="libOSMesa is not installed: no pictures")


def metaworld(**settings: Any) -> VecEnv:
    return make_env("metaworld", settings)


# --------------------------------------------------------------------- tasks and seeds
def test_every_task_of_metaworld_has_an_instruction_and_an_expert() -> None:
    from metaworld.env_dict import ENV_CLS_MAP
    from metaworld.policies import ENV_POLICY_MAP

    ours = {f"{task}-v3" for task in INSTRUCTIONS}
    assert ours == set(ENV_CLS_MAP) == set(ENV_POLICY_MAP)
    assert len(set(INSTRUCTIONS.values())) == len(INSTRUCTIONS) == 50


def test_the_seed_decides_task_objects_and_goal_wherever_the_episode_runs() -> None:
    env = metaworld(num_envs=3, tasks=["reach", "push-v3"])
    obs, _ = env.reset(seed=[4, 5, 4])
    push, reach = INSTRUCTIONS["push"], INSTRUCTIONS["reach"]
    assert obs["task_descriptions"] == [reach, push, reach] and obs["states"].shape == (3, 39)
    first, goals = obs["states"], obs["states"][:, -3:]
    assert torch.equal(first[0], first[2]) and not torch.equal(goals[0], goals[1])
    one = env.chunk_step(torch.full((3, 2, 4), 0.5))
    assert torch.equal(one.obs["states"][0], one.obs["states"][2]) and torch.equal(one.rewards[0], one.rewards[2])
    again, _ = env.reset(seed=[5, 4, 6])  # each scene has the other's task now, and scenes that were used before
    assert torch.equal(again["states"][:2], first[[1, 0]]) and not torch.equal(again["states"][2], first[2])
    two = env.chunk_step(torch.full((3, 2, 4), 0.5))
    assert torch.equal(two.obs["states"][:2], one.obs["states"][[1, 0]])
    assert torch.equal(two.rewards[:2], one.rewards[[1, 0]])


def test_steps_are_those_of_metaworld() -> None:
    import metaworld as published
    import numpy as np

    env = metaworld(num_envs=1, tasks=["push"])
    obs, _ = env.reset(seed=11)
    plain = published.env_dict.ENV_CLS_MAP["push-v3"]()
    plain.set_task(published.Task("push-v3", published._encode_task("push-v3", {
        "rand_vec": env._scenes[0].sim._last_rand_vec, "env_cls": type(plain), "partially_observable": False,
    }).data))  # fmt: skip
    wanted, _ = plain.reset()
    assert np.allclose(obs["states"][0], wanted, atol=1e-6)
    for action in torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1:
        result = env.step(action[None])
        wanted, reward, _, _, info = plain.step(action.numpy())
        assert np.allclose(result.obs["states"][0], wanted, atol=1e-6)
        assert float(result.rewards[0]) == pytest.approx(float(reward), abs=1e-6)
        assert bool(result.success_at_end[0]) == bool(info["success"])


@pytest.mark.slow
@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_every_task_repeats_by_its_seed_and_its_expert_solves_it(task: str) -> None:
    used, solved = Scene(task, "v2"), 0
    for seed in range(3):
        used.reset(seed)
        solved += any(used.step(used.expert())[1] for _ in range(500))
    assert solved >= 2, f"the expert of {task} solved {solved} of 3 episodes"
    fresh = Scene(task, "v2")
    used.reset(7)
    fresh.reset(7)
    for action in torch.rand(8, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1:
        assert used.step(action.numpy()) == fresh.step(action.numpy())
        assert (used.obs == fresh.obs).all()


# --------------------------------------------------------------------- ends, rewards, expert
def test_the_expert_reaches_and_rewards_are_what_was_asked_for() -> None:
    env = metaworld(num_envs=2, terminate_on_success=True, max_episode_steps=60, reward="sparse", reward_scale=2.0,
                    goal_visible=False)  # fmt: skip
    obs, _ = env.reset(seed=3)
    assert not obs["states"][:, -3:].any(), "the goal is hidden from the policy, not from the expert"
    records = []
    for _ in range(60):
        actions = env.expert_actions()
        assert actions.shape == (2, 4) and actions.dtype == torch.float32 and actions.abs().max() <= 1
        records += env.step(actions).episodes
        if {record.index for record in records} == {0, 1}:
            break
    assert all(item.success_at_end and item.terminated and item.return_ == 2.0 for item in records), records
    assert {item.label for item in records} == {("reach", "")}
    env.close()
    env.close()


def test_an_episode_lasts_as_long_as_was_asked_for_and_no_longer_than_metaworld_allows_by_default() -> None:
    assert metaworld().max_episode_steps == 500
    env = metaworld(max_episode_steps=3)
    env.reset(seed=0)
    result = env.chunk_step(torch.zeros(1, 4, 4))
    assert result.truncations.tolist() == [[False, False, True, False]]
    assert result.executed.tolist() == [[True, True, True, False]]


# --------------------------------------------------------------------- pictures
@needs_opengl
def test_pictures_show_the_scene_the_right_way_up_and_the_same_ones_for_one_seed() -> None:
    env = metaworld(num_envs=2, states=False, image_size=32, main_camera="corner2", extra_cameras=["gripperPOV"],
                    render_size=32)  # fmt: skip
    obs, _ = env.reset(seed=[3, 3])
    image = obs["main_images"]
    assert sorted(obs) == ["extra_view_images", "main_images", "task_descriptions"]
    assert image.shape == (2, 32, 32, 3) and image.dtype == torch.uint8
    assert obs["extra_view_images"].shape == (2, 1, 32, 32, 3)
    assert torch.equal(image[0], image[1]) and image.float().std() > 20
    red = (image[0, ..., 0].float() - image[0, ..., 1].float()) > 60
    assert red.nonzero()[:, 1].float().mean() < 18, "the arm stands at the left"
    assert image[0, :5].float().std() < 5, "the empty background is above"
    after = env.chunk_step(torch.tensor([[[1.0, 1.0, 1.0, 0.0]] * 3, [[0.0] * 4] * 3])).obs["main_images"]
    assert (after[0] != image[0]).any(), "the picture moves with the arm"
    assert env.render(1).shape == (32, 32, 3)
    env.close()


def test_without_opengl_pictures_are_refused_with_advice_and_states_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphics, "has_osmesa", lambda: False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(MissingDependency, match="apt-get install libosmesa6"):
        metaworld(main_camera="corner2")
    env = metaworld()
    obs, _ = env.reset(seed=0)
    assert obs["states"].shape == (1, 39)
    with pytest.raises(MissingDependency, match="states and needs neither"):
        env.render(0)


# --------------------------------------------------------------------- processes and mistakes
@pytest.mark.slow
def test_scenes_in_simulator_processes_are_the_same() -> None:
    plain, isolated = metaworld(num_envs=2), metaworld(num_envs=2, processes=1)
    first, _ = isolated.reset(seed=8)
    assert torch.equal(first["states"], plain.reset(seed=8)[0]["states"])
    actions = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one, two = plain.chunk_step(actions), isolated.chunk_step(actions)
    assert torch.equal(one.obs["states"], two.obs["states"]) and torch.equal(one.rewards, two.rewards)
    assert torch.equal(plain.expert_actions(), isolated.expert_actions())
    isolated.close()


def test_mistakes_name_the_key() -> None:
    with pytest.raises(ConfigError, match="tasks: there is no task 'reech'; there are mt10, mt50, assembly"):
        metaworld(tasks=["reech"])
    with pytest.raises(ConfigError, match="main_camera: .*'topview'"):
        metaworld(main_camera="front")
    assert len(make_env("metaworld", {"tasks": "mt10"})._options.tasks) == 10
