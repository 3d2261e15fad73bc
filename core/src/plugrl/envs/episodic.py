"""The environment that most simulators derive from: they simulate, everything else of the contract is here.

A simulator implements three hooks on NumPy arrays, ``begin_scenes``, ``advance_scenes`` and ``observe_scenes``, and
others if it can: ``label_scenes``, ``expert_scenes`` and ``render_scene``. Chunks, ends of episodes, restarts of single
scenes, seeds, successes and records are the same for all. Importing this imports no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.arrays import ChunkArrays, checked_actions
from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.envs.config import EnvParams
from plugrl.envs.episodes import EpisodeBook, SceneLabel, SceneOutcome, spread_seeds
from plugrl.envs.observations import TASK_FIELD, as_tensors, own_observations, with_rows
from plugrl.errors import PlugRLError, UnsupportedCapability, UserError

if TYPE_CHECKING:
    import torch

Bools = NDArray[np.bool_]
Steps = tuple[NDArray[np.float32], Bools, Bools, Bools]
"""Rewards, executed, terminated, truncated, each [N, C]."""


class EpisodicEnv(VecEnv):
    """A :class:`VecEnv` over the three hooks of a simulator.

    Args:
        params: number of scenes, length of episodes, and what happens when one ends.
        action_dim: numbers in one action.
        max_episode_steps: the simulator's own limit, for when ``params`` gives none.
    """

    def __init__(self, params: EnvParams, *, action_dim: int, max_episode_steps: int | None = None) -> None:
        self._params = params
        self._action_dim = action_dim
        limit = params.max_episode_steps if params.max_episode_steps is not None else max_episode_steps
        self._book = EpisodeBook(params.num_envs, max_episode_steps=limit)
        self._ends_by_task = not params.ignore_terminations
        self._everything = np.arange(params.num_envs)
        self._obs: dict[str, Any] = {}

    # ----------------------------------------------------------------- hooks of the simulator
    @abstractmethod
    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Start the scenes ``indices`` anew, each determined by its seed alone."""

    @abstractmethod
    def advance_scenes(self, actions: NDArray[np.float32], active: Bools) -> SceneOutcome:
        """Apply one action per scene, [N, action_dim], in the scenes ``active`` [N]; the others must not move."""

    @abstractmethod
    def observe_scenes(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """Return what the scenes ``indices`` look like, each field [len(indices), ...]. It is copied."""

    def label_scenes(self, indices: NDArray[np.int64]) -> Sequence[SceneLabel] | None:
        """Return by what the episodes that just began in the scenes ``indices`` are counted.

        None stands for their instructions, ``task_descriptions``. Names of tasks are worth giving where instructions
        differ from episode to episode, and splits where there are several at once.
        """
        return None

    def expert_scenes(self) -> NDArray[np.float32]:
        """Return what an expert would do next in each scene, [N, action_dim]; by default there is no expert."""
        raise UnsupportedCapability(f"{type(self).__name__} has no expert to take demonstrations from.")

    def render_scene(self, index: int) -> NDArray[np.uint8]:
        """Return a picture of scene ``index`` for people, [H, W, 3]; by default there is none."""
        raise UnsupportedCapability(f"{type(self).__name__} renders no pictures.")

    # ----------------------------------------------------------------- the contract
    @property
    def num_envs(self) -> int:
        """Number of scenes."""
        return self._params.num_envs

    @property
    def action_dim(self) -> int:
        """Numbers in one action."""
        return self._action_dim

    @property
    def max_episode_steps(self) -> int | None:
        """Actions after which an episode is truncated; None where the simulator alone knows."""
        return self._book.max_episode_steps

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seed of the episode in each scene."""
        return tuple(self._book.seeds)

    @property
    def book(self) -> EpisodeBook:
        """The state of the episodes, to be read."""
        return self._book

    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes; see :meth:`VecEnv.reset`. ``info["seeds"]`` holds the seed of each scene."""
        chosen = self._chosen(indices)
        if not self._obs and len(chosen) < self.num_envs:
            raise UserError("The first reset of an environment must start every scene: give no indices.")
        self._begin(chosen, self._book.next_seeds(chosen) if seed is None else spread_seeds(seed, chosen))
        return as_tensors(self._obs), {"seeds": self.seeds}

    def reset_arrays(self, seeds: Sequence[int], indices: Sequence[int]) -> dict[str, Any]:
        """Start new episodes and return the observations of all scenes as NumPy arrays."""
        self._begin(list(indices), seeds)
        return self._obs

    def chunk_step(self, actions: torch.Tensor) -> ChunkResult:
        """Apply a chunk of actions; see :meth:`VecEnv.chunk_step`."""
        return self.chunk_arrays(checked_actions(actions, self.num_envs, self._action_dim)).result()

    def chunk_arrays(self, actions: NDArray[np.float32]) -> ChunkArrays:
        """Apply a chunk of actions [N, C, D] and return what came of it as NumPy arrays.

        Raises PlugRLError before the first reset.
        """
        if not self._obs:
            raise PlugRLError(f"{type(self).__name__} was given actions before its first reset.")
        begun = self._book.running.copy()
        steps = self._one_step(actions[:, 0], begun) if actions.shape[1] == 1 else self._steps(actions, begun)
        return self._finished(begun, *steps)

    def _one_step(self, actions: NDArray[np.float32], active: Bools) -> Steps:
        """Do what :meth:`_steps` does for a chunk of one action [N, D], in fewer operations: each costs as much as a
        step of a small simulator."""
        book = self._book
        outcome = self.advance_scenes(actions, active)
        solved = np.logical_and(outcome.success, active)
        terminated = np.logical_and(outcome.terminated, active) if self._ends_by_task else np.zeros_like(active)
        truncated = book.steps_left() <= 1
        if outcome.truncated is not None:
            truncated |= outcome.truncated
        truncated &= active
        truncated &= ~terminated
        rewards = np.where(active, outcome.rewards, 0.0).astype(np.float32)
        book.advance_one(rewards, active, terminated, truncated, solved)
        return rewards[:, None], active[:, None], terminated[:, None], truncated[:, None]

    def _steps(self, actions: NDArray[np.float32], begun: Bools) -> Steps:
        """Step through a chunk [N, C, D] and keep the book; return rewards, executed, terminated, truncated, [N, C]."""
        book, (count, length) = self._book, actions.shape[:2]
        rewards = np.zeros((count, length), dtype=np.float32)
        executed, terminated, truncated, solved = flags = np.zeros((4, count, length), dtype=np.bool_)
        active, left = begun, book.steps_left()
        for column in range(length):
            outcome = self.advance_scenes(actions[:, column], active)
            rewards[:, column], executed[:, column] = outcome.rewards, active
            terminated[:, column], solved[:, column] = outcome.terminated, outcome.success
            over = (outcome.terminated & self._ends_by_task) | (left <= column + 1)
            if outcome.truncated is not None:
                truncated[:, column] = outcome.truncated
                over |= outcome.truncated
            over &= active
            if over.any():
                active = active & ~over
                if not active.any():
                    break
        truncated |= left[:, None] <= np.arange(1, length + 1)
        flags[1:] &= executed
        rewards[~executed] = 0.0
        if not self._ends_by_task:
            terminated[:] = False
        truncated &= ~terminated
        book.advance(rewards, executed, terminated, truncated, solved)
        return rewards, executed, terminated, truncated

    def _finished(self, begun: Bools, rewards: NDArray[np.float32], executed: Bools, terminated: Bools,
                  truncated: Bools) -> ChunkArrays:  # fmt: skip
        """Look at the scenes, restart those that ended, and put the result together."""
        book = self._book
        ended: list[int] = np.flatnonzero(begun != book.running).tolist()
        success_once, success_at_end = book.success_once.copy(), book.success_at_end.copy()
        episodes = tuple(book.record(index) for index in ended)
        self._obs = last = own_observations(self.observe_scenes(self._everything))
        if ended and self._params.auto_reset:
            self._begin(ended, book.next_seeds(ended))
        return ChunkArrays(
            obs=self._obs,
            final_obs=last if ended else None,
            rewards=rewards,
            executed=executed,
            terminations=terminated,
            truncations=truncated,
            success_once=success_once,
            success_at_end=success_at_end,
            lost=np.zeros_like(begun),
            episodes=episodes,
        )

    def expert_actions(self) -> torch.Tensor:
        """Return what an expert would do next, float32 [N, action_dim]; see :meth:`VecEnv.expert_actions`."""
        import torch

        return torch.from_numpy(np.array(self.expert_scenes(), dtype=np.float32))

    def render(self, index: int) -> torch.Tensor:
        """Return a picture of scene ``index``, uint8 [H, W, 3]; see :meth:`VecEnv.render`."""
        import torch

        return torch.from_numpy(np.array(self.render_scene(index), dtype=np.uint8))

    def _begin(self, indices: list[int], seeds: Sequence[int]) -> None:
        where = np.asarray(indices, dtype=np.int64)
        self.begin_scenes(where, seeds)
        self._book.begin(indices, seeds)
        rows = own_observations(self.observe_scenes(where))
        self._book.label(indices, self._labels(where, rows.get(TASK_FIELD)))
        if len(indices) == self.num_envs and indices == self._everything.tolist():
            self._obs = rows
        else:
            self._obs = with_rows(self._obs, indices, rows)

    def _labels(self, where: NDArray[np.int64], instructions: Sequence[str] | None) -> Sequence[SceneLabel]:
        found = self.label_scenes(where)
        return [SceneLabel(str(text)) for text in instructions or ()] if found is None else found

    def _chosen(self, indices: Sequence[int] | None) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        chosen = [int(index) for index in indices]
        if len(set(chosen)) != len(chosen) or not all(0 <= index < self.num_envs for index in chosen):
            raise UserError(f"reset: indices {chosen} must be different scenes from 0 to {self.num_envs - 1}.")
        return chosen
