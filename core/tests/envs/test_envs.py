"""The contract of environments: seeds, chunks, ends of episodes, restarts of single scenes, the registry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.envs.registry import ENVS, get_env, register_env
from plugrl.errors import ConfigError, NotRegistered, PluginError, PlugRLError, UnsupportedCapability, UserError

torch = pytest.importorskip("torch")

from plugrl.envs import EnvParams, VecEnv, make_env  # noqa: E402
from plugrl.envs.episodes import SEED_LIMIT, SceneOutcome, next_seed  # noqa: E402
from plugrl.envs.factory import env_schema  # noqa: E402
from plugrl.testing.corridor import Corridor, corridor  # noqa: E402


class Walled(EnvParams):
    """Settings of an environment that no plugin declares."""

    walls: int = 0


def moves(*rows: list[float]) -> torch.Tensor:
    """Return actions [N, C, 1]."""
    return torch.tensor(rows)[..., None]


# --------------------------------------------------------------------- ends within a chunk
def test_an_end_within_a_chunk_leaves_its_later_actions_out_and_restarts_that_scene_once() -> None:
    env = corridor(2)
    env.reset(seed=[7, 7])
    before = len(env.starts)
    result = env.chunk_step(moves([2.0, 3.0, 1.0, 1.0], [0.5, 0.0, 0.0, 0.0]))
    assert result.executed.tolist() == [[True, True, False, False], [True] * 4]
    assert result.terminations.tolist() == [[False, True, False, False], [False] * 4]
    assert not result.truncations.any()
    assert result.rewards.tolist() == [[2.0, 3.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]]
    assert env.starts[before:] == [(0, next_seed(7))], "only the scene that ended restarts, once"
    assert result.final_obs is not None
    start = result.obs["states"][1] - 0.5
    assert torch.allclose(result.final_obs["states"][:, 0], start + torch.tensor([5.0, 0.5]))
    assert result.obs["states"][0] < 1 and env.seeds == (next_seed(7), 7)


def test_the_record_of_an_episode_spans_chunks_and_tells_solved_once_from_solved_at_the_end() -> None:
    env = corridor(2, max_episode_steps=4)
    env.reset(seed=[1, 2])
    first = env.chunk_step(moves([2.9, 0.0], [0.0, 0.0]))
    assert first.success_once.tolist() == [True, False] and first.episodes == () and first.final_obs is None
    second = env.chunk_step(moves([-2.0, 0.0], [0.0, 2.9]))
    assert second.truncations.tolist() == [[False, True]] * 2 and not second.terminations.any()
    assert second.success_once.tolist() == [True, True] and second.success_at_end.tolist() == [False, True]
    one, two = second.episodes
    assert (one.index, one.seed, one.length, one.success_once, one.success_at_end) == (0, 1, 4, True, False)
    assert (two.index, two.seed, two.length, two.success_once, two.success_at_end) == (1, 2, 4, True, True)
    assert one.return_ == pytest.approx(0.9) and not one.terminated and not one.dropped
    assert one.label == ("walk on from 0", ""), "the task is the instruction that the episode began with"
    assert env.chunk_step(moves([0.0], [0.0])).success_once.tolist() == [False, False], "a new episode begins unsolved"


def test_what_the_task_ends_in_the_last_step_is_not_truncated_too() -> None:
    env = corridor(1, max_episode_steps=2)
    env.reset(seed=0)
    result = env.chunk_step(moves([1.0, 4.0]))
    assert result.terminations.tolist() == [[False, True]] and not result.truncations.any()


def test_terminations_can_be_ignored_while_success_is_kept() -> None:
    env = corridor(1, max_episode_steps=3, ignore_terminations=True)
    env.reset(seed=0)
    result = env.chunk_step(moves([5.0, 0.0, -4.0]))
    assert not result.terminations.any() and result.truncations.tolist() == [[False, False, True]]
    assert result.success_once.tolist() == [True] and result.success_at_end.tolist() == [False]


def test_without_restarts_a_scene_waits_where_it_ended() -> None:
    env = corridor(2, auto_reset=False)
    env.reset(seed=0)
    ended = env.chunk_step(moves([5.0], [0.1]))
    again = env.chunk_step(moves([1.0, 1.0], [0.1, 0.1]))
    assert again.executed.tolist() == [[False, False], [True, True]] and again.rewards[0].tolist() == [0.0, 0.0]
    assert not again.dones.any() and again.episodes == () and again.success_at_end[0]
    assert torch.equal(again.obs["states"][0], ended.obs["states"][0])
    _, info = env.reset(indices=[0])
    assert info["seeds"] == (next_seed(0), 1)
    assert env.chunk_step(moves([1.0], [0.1])).executed.all()


def test_one_action_is_a_chunk_of_one() -> None:
    one, two = corridor(2), corridor(2)
    one.reset(seed=3)
    two.reset(seed=3)
    actions = torch.tensor([[5.0], [0.5]])
    step, chunk = one.step(actions), two.chunk_step(actions[:, None])
    assert step.rewards.tolist() == [5.0, 0.5] and step.dones.tolist() == [True, False]
    assert torch.equal(step.obs["states"], chunk.obs["states"]) and step.episodes == chunk.episodes


def test_nothing_of_a_scene_that_stood_still_is_believed() -> None:
    class Careless(Corridor):
        """Says anything about scenes that it did not move."""

        def advance_scenes(self, actions: Any, active: Any) -> SceneOutcome:
            found = super().advance_scenes(actions, active)
            return SceneOutcome(
                rewards=np.where(active, found.rewards, np.nan), terminated=found.terminated | ~active,
                success=found.success | ~active, truncated=~active,
            )  # fmt: skip

    env = Careless(EnvParams(num_envs=2, auto_reset=False))
    env.reset(seed=0)
    env.chunk_step(moves([2.5, 2.0], [0.1, 0.1]))
    result = env.chunk_step(moves([0.1], [0.1]))
    assert result.rewards.flatten().tolist() == pytest.approx([0.0, 0.1])
    assert not result.dones.any() and result.episodes == () and result.success_at_end.tolist() == [True, False]


# --------------------------------------------------------------------- seeds
def test_scenes_with_one_seed_go_through_the_same_episodes_whichever_ends_first() -> None:
    env = corridor(2)
    env.reset(seed=[5, 5])
    env.chunk_step(moves([5.0], [0.0]))
    assert env.seeds[0] != env.seeds[1]
    env.chunk_step(moves([0.0], [5.0]))
    assert env.seeds[0] == env.seeds[1] == next_seed(5)


def test_one_seed_is_spread_and_a_part_can_restart_alone() -> None:
    env = corridor(3)
    assert env.reset(seed=10)[1]["seeds"] == (10, 11, 12)
    obs, info = env.reset(seed=[4], indices=[1])
    assert info["seeds"] == (10, 4, 12)
    whole, _ = env.reset(seed=[10, 4, 12])
    assert torch.equal(obs["states"], whole["states"])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2 * SEED_LIMIT - 1), st.integers(0, SEED_LIMIT - 2))
def test_seeds_that_follow_are_never_given_ones_and_never_meet(seed: int, other: int) -> None:
    follows = next_seed(seed)
    assert SEED_LIMIT <= follows < 2 * SEED_LIMIT and next_seed(seed) == follows
    if seed % SEED_LIMIT != other % SEED_LIMIT:
        assert next_seed(other) != follows


# --------------------------------------------------------------------- what is given
def test_what_was_returned_is_never_written_into_again() -> None:
    env = corridor(2)
    obs, _ = env.reset(seed=0)
    kept = obs["states"].clone()
    first = env.chunk_step(moves([0.5], [5.0]))
    states, final = first.obs["states"].clone(), first.final_obs["states"].clone()
    env.chunk_step(moves([5.0], [0.5]))
    env.reset(seed=9)
    assert torch.equal(obs["states"], kept) and torch.equal(first.obs["states"], states)
    assert torch.equal(first.final_obs["states"], final)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (torch.zeros(2, 3, 4), r"\[2, C, 1\], not \[2, 3, 4\]. The policy's action_dim must be 1"),
        (torch.zeros(3, 1, 1), r"\[2, C, 1\], not \[3, 1, 1\]"),
        (torch.zeros(2, 1), r"not \[2, 1\]"),
        (torch.tensor([[[float("nan")]], [[0.0]]]), "not finite"),
    ],
)
def test_actions_that_do_not_fit_are_refused(actions: torch.Tensor, words: str) -> None:
    env = corridor(2)
    env.reset(seed=0)
    with pytest.raises(UserError, match=words):
        env.chunk_step(actions)


def test_misuse_is_one_message() -> None:
    env = corridor(2)
    with pytest.raises(PlugRLError, match="before its first reset"):
        env.chunk_step(torch.zeros(2, 1, 1))
    with pytest.raises(UserError, match="must start every scene"):
        env.reset(seed=1, indices=[0])
    with pytest.raises(UserError, match="3 seeds for 2 scenes"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(UserError, match="-1"):
        env.reset(seed=-1)
    with pytest.raises(UserError, match="different scenes from 0 to 1"):
        env.reset(indices=[0, 2])
    with pytest.raises(UnsupportedCapability, match="Corridor has no expert"):
        env.expert_actions()
    with pytest.raises(UnsupportedCapability, match="Corridor renders no"):
        env.render(0)
    assert env.offload() is None and env.onload() is None


# --------------------------------------------------------------------- the registry
def test_an_environment_is_made_from_plain_settings() -> None:
    with ENVS.temporary():
        register_env("corridor")(Corridor)
        assert make_env("corridor", {"num_envs": 3, "max_episode_steps": 5}).max_episode_steps == 5
        with pytest.raises(ConfigError, match="num_envs: .*greater.*; colour: .*It has the keys num_envs, "):
            make_env("corridor", {"num_envs": 0, "colour": 1})
        register_env("walled", schema=Walled)(Corridor)
        assert env_schema("walled") is Walled and make_env("walled", {"num_envs": 2, "walls": 3}).num_envs == 2


def test_environments_are_found_by_name() -> None:
    with ENVS.temporary():
        register_env("corridor")(Corridor)
        assert get_env("Corridor") is Corridor
        with pytest.raises(NotRegistered, match='"corridor"'):
            get_env("coridor")
        with pytest.raises(PluginError, match="chunk_step"):
            register_env("half")(type("Half", (VecEnv,), {}))
        with pytest.raises(PluginError, match="VecEnv"):
            register_env("none")(3)  # type: ignore[type-var]
