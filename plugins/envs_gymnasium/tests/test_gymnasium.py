"""Environments of gymnasium: the adapter gives what gymnasium gives, in every mode of its vector environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from plugrl.envs import EnvParams, VecEnv, make_env
from plugrl.envs.episodes import next_seed
from plugrl.envs.gymnasium.spaces import ActionMap, ObservationMap
from plugrl.envs.gymnasium.vector import GymnasiumVector
from plugrl.errors import ConfigError, UnsupportedCapability, UserError
from plugrl.plugins import load_plugins

load_plugins()
FIELDS = ("rewards", "executed", "terminations", "truncations", "success_once", "success_at_end")


class Counting(gymnasium.Env):
    """Adds up its actions from a start by the seed; over at 3, truncated after five steps, pictures of the sum."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
                "sum": spaces.Box(-np.inf, np.inf, (1,), np.float64),
                "phase": spaces.Discrete(3),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.render_mode = render_mode

    def _look(self) -> dict[str, Any]:
        shade = np.uint8(int(self.total * 20) % 256)
        return {"camera": np.full((4, 5, 3), shade), "sum": np.array([self.total]), "phase": self.steps % 3}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.total, self.steps = float(self.np_random.random()), 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.total += float(action[0])
        self.steps += 1
        return self._look(), float(action[0]), self.total >= 3, self.steps >= 5, {"is_success": self.total >= 2.5}

    def render(self) -> Any:
        return np.full((6, 6, 3), 7, dtype=np.uint8)


if "Counting-v0" not in gymnasium.registry:
    gymnasium.register("Counting-v0", entry_point=Counting)


def counting(**settings: Any) -> VecEnv:
    return make_env("gymnasium", {"id": "Counting-v0", "num_envs": 3, **settings})


# --------------------------------------------------------------------- the same as gymnasium
def test_the_cart_moves_as_in_gymnasium() -> None:
    env, plain = make_env("gymnasium", {"id": "CartPole-v1", "num_envs": 2}), gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=[4, 9])
    wanted, _ = plain.reset(seed=9)
    assert env.max_episode_steps == 500 and env.action_dim == 1
    assert torch.equal(obs["states"][1], torch.from_numpy(wanted))
    length = 0
    for action in [1, 0] + [1] * 40:
        wanted, _, terminated, _, _ = plain.step(action)
        result = env.step(torch.tensor([[0.0], [float(action)]]))
        length += 1
        assert bool(result.terminations[1]) is terminated
        last = result.obs if result.final_obs is None else result.final_obs
        assert torch.equal(last["states"][1], torch.from_numpy(wanted))
        if terminated:
            break
    assert terminated and [item.length for item in result.episodes if item.index == 1] == [length]
    assert torch.equal(result.obs["states"][1], torch.from_numpy(plain.reset(seed=next_seed(9))[0]))
    env.close()
    env.close()


@pytest.mark.parametrize("mode", ["disabled", "same_step", "next_step"])
def test_vector_environments_give_the_same_whichever_way_they_restart(mode: str) -> None:
    ones, vector = counting(), counting(vectorization="sync", autoreset_mode=mode)
    source = torch.Generator().manual_seed(1)
    first, _ = vector.reset(seed=5)
    assert torch.equal(first["states"], ones.reset(seed=5)[0]["states"])
    kept, episodes = first["states"].clone(), 0
    for chunk in (1, 3, 4, 2, 1, 1, 6):
        actions = torch.rand(3, chunk, 1, generator=source)
        one, two = ones.chunk_step(actions), vector.chunk_step(actions)
        for name in FIELDS:
            assert torch.equal(getattr(one, name), getattr(two, name)), (mode, name)
        for name in ("states", "main_images"):
            assert torch.equal(one.obs[name], two.obs[name]), (mode, name)
            if one.final_obs is not None:
                assert torch.equal(one.final_obs[name], two.final_obs[name]), (mode, name)
        assert one.episodes == two.episodes and ones.seeds == vector.seeds
        episodes += len(one.episodes)
    assert episodes >= 6 and torch.equal(first["states"], kept)
    ones.close()
    vector.close()


def test_an_asynchronous_vector_environment_gives_the_same() -> None:
    ones = make_env("gymnasium", {"id": "CartPole-v1", "num_envs": 2})
    vector = make_env("gymnasium", {"id": "CartPole-v1", "num_envs": 2, "vectorization": "async"})
    ones.reset(seed=1)
    vector.reset(seed=1)
    for _ in range(10):
        actions = torch.ones(2, 4, 1)
        one, two = ones.chunk_step(actions), vector.chunk_step(actions)
        assert torch.equal(one.obs["states"], two.obs["states"]) and one.episodes == two.episodes
    vector.close()


# --------------------------------------------------------------------- observations, actions, success
def test_a_dict_observation_becomes_fields() -> None:
    env = counting(task_description="count to three")
    obs, _ = env.reset(seed=0)
    assert obs["main_images"].shape == (3, 4, 5, 3) and obs["main_images"].dtype == torch.uint8
    assert obs["states"].shape == (3, 4), "the phase as one of three, beside the sum"
    assert obs["task_descriptions"] == ["count to three"] * 3
    chosen, _ = counting(observations={"states": "sum", "wrist_images": "camera"}).reset(seed=0)
    assert set(chosen) == {"states", "wrist_images"} and chosen["states"].shape == (3, 1)
    pixels, _ = counting(pixels=True).reset(seed=0)
    assert pixels["main_images"].shape == (3, 6, 6, 3) and int(pixels["main_images"][0, 0, 0, 0]) == 7
    with pytest.raises(UserError, match="no key 'smell'. Its keys: camera, phase, sum"):
        counting(observations={"states": "smell"})
    with pytest.raises(UserError, match="'sum' is Box.*no picture"):
        counting(observations={"main_images": "sum"})


def test_pictures_of_other_layouts_become_height_width_three_channels() -> None:
    space = spaces.Box(0, 255, (3, 8, 9), np.uint8)
    assert ObservationMap(space, {}).fields([np.zeros((3, 8, 9), np.uint8)])["main_images"].shape == (1, 8, 9, 3)
    grey = ObservationMap(spaces.Box(0, 255, (8, 9), np.uint8), {}).fields([np.full((8, 9), 4, np.uint8)])
    assert grey["main_images"].shape == (1, 8, 9, 3) and (grey["main_images"] == 4).all()


def test_success_comes_from_the_info_or_the_return() -> None:
    env = counting()
    env.reset(seed=0)
    solved = env.chunk_step(torch.full((3, 3, 1), 0.9))
    assert solved.success_at_end.all()
    by_return = counting(success_return=1.5)
    by_return.reset(seed=0)
    assert by_return.chunk_step(torch.full((3, 2, 1), 0.8)).success_once.all()
    env = counting(success_key="other")
    env.reset(seed=0)
    with pytest.raises(UserError, match="no 'other'. Its keys: is_success"):
        env.chunk_step(torch.zeros(3, 1, 1))


def test_actions_of_every_space() -> None:
    def first(space: spaces.Space, row: list[float], normalise: bool = False) -> Any:
        return ActionMap(space, normalise).actions(np.array([row, row], dtype=np.float32))[0]

    bounds = spaces.Box(np.array([0.0, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)
    assert first(bounds, [-1.0, 0.5], normalise=True).tolist() == [0.0, 1.0]
    assert first(bounds, [-1.0, 0.5]).tolist() == [0.0, 0.5] and first(bounds, [0.0, 0.0]).dtype == np.float64
    assert first(spaces.Box(-1, 1, (2, 2)), [2, 0, 0, 0]).tolist() == [[1, 0], [0, 0]]
    assert first(spaces.Discrete(3, start=5), [1.6]) == 7 and first(spaces.Discrete(3), [9.0]) == 2
    assert first(spaces.MultiDiscrete([2, 4]), [0.6, 7.0]).tolist() == [1, 3]
    assert first(spaces.MultiBinary(2), [0.7, 0.2]).tolist() == [1, 0]
    assert ActionMap(spaces.MultiDiscrete([2, 4]), False).dim == 2
    with pytest.raises(UserError, match="no finite bounds"):
        ActionMap(spaces.Box(-np.inf, np.inf, (1,)), True)
    with pytest.raises(UserError, match="Text is not supported"):
        ActionMap(spaces.Text(3), False)


# --------------------------------------------------------------------- limits and mistakes
def test_a_limit_of_steps_truncates() -> None:
    env = make_env("gymnasium", {"id": "CartPole-v1", "num_envs": 1, "max_episode_steps": 3})
    env.reset(seed=0)
    result = env.chunk_step(torch.ones(1, 5, 1))
    assert result.truncations.tolist() == [[False, False, True, False, False]] and not result.terminations.any()


class ResetsAll(SyncVectorEnv):
    """A vector environment that does not know of masks."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


def test_a_vector_environment_that_resets_all_is_refused() -> None:
    env = ResetsAll([Counting] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(UserError, match="resets all scenes when one is to be reset"):
        GymnasiumVector(env, EnvParams(num_envs=2))
    with pytest.raises(UserError, match="num_envs is 3, the vector environment has 2"):
        GymnasiumVector(env, EnvParams(num_envs=3))
    env.close()


def test_mistakes_are_one_message() -> None:
    with pytest.raises(UserError, match="cannot make 'CartPoll-v1'"):
        make_env("gymnasium", {"id": "CartPoll-v1"})
    with pytest.raises(ConfigError, match="id: Field required"):
        make_env("gymnasium", {})
    with pytest.raises(ConfigError, match="observations has smell; the fields are states"):
        make_env("gymnasium", {"id": "CartPole-v1", "observations": {"smell": "x"}})
    env = counting()
    env.reset(seed=0)
    with pytest.raises(UnsupportedCapability, match="render_mode: rgb_array"):
        env.render(0)
