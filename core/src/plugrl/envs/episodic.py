"""The environment that most simulators derive from: they simulate, everything else of the contract is here.

A simulator implements three hooks on NumPy arrays, ``begin_scenes``, ``advance_scenes`` and ``observe_scenes``. Chunks,
ends of episodes, restarts of single scenes, seeds, successes and records are the same for all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.envs.config import EnvParams
from plugrl.envs.episodes import EpisodeBook, EpisodeRecord, SceneOutcome, spread_seeds
from plugrl.envs.observations import own_observations, with_rows
from plugrl.errors import PlugRLError, UserError

Bools = NDArray[np.bool_]


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
        self._book = EpisodeBook(params.num_envs, max_episode_steps=limit,
                                 ignore_terminations=params.ignore_terminations)  # fmt: skip
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

    def running_records(self) -> tuple[EpisodeRecord, ...]:
        """Return the record of the latest episode of each scene as it stands."""
        return tuple(self._book.record(index) for index in range(self.num_envs))

    def reset(
        self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Start new episodes; see :meth:`VecEnv.reset`. ``info["seeds"]`` holds the seed of each scene."""
        chosen = self._chosen(indices)
        if not self._obs and len(chosen) < self.num_envs:
            raise UserError("The first reset of an environment must start every scene: give no indices.")
        self._begin(chosen, self._book.next_seeds(chosen) if seed is None else spread_seeds(seed, chosen))
        return self._obs, {"seeds": self.seeds}

    def chunk_step(self, actions: torch.Tensor) -> ChunkResult:
        """Apply a chunk of actions; see :meth:`VecEnv.chunk_step`."""
        values = self._checked(actions)
        shape = values.shape[:2]
        rewards = np.zeros(shape, dtype=np.float32)
        flags = np.zeros((3, *shape), dtype=np.bool_)
        executed, terminations, truncations = flags
        active = self._book.running.copy()
        for column in range(shape[1]):
            if not active.any():
                break
            outcome = self.advance_scenes(values[:, column], active)
            terminated, truncated = self._book.advance(active, outcome)
            rewards[:, column] = np.where(active, outcome.rewards, 0.0)
            executed[:, column], terminations[:, column], truncations[:, column] = active, terminated, truncated
            active &= self._book.running
        ended = np.flatnonzero((terminations | truncations).any(axis=1))
        return self._finish(ended, rewards, flags)

    def _finish(self, ended: NDArray[np.int64], rewards: NDArray[np.float32], flags: Bools) -> ChunkResult:
        """Observe, keep the records of what ended, and restart those scenes."""
        success = (self._book.success_once.copy(), self._book.success_at_end.copy())
        episodes = tuple(self._book.record(int(index)) for index in ended)
        self._obs = last = own_observations(self.observe_scenes(np.arange(self.num_envs)))
        if len(ended) and self._params.auto_reset:
            chosen = ended.tolist()
            self._begin(chosen, self._book.next_seeds(chosen))
        return ChunkResult(
            obs=self._obs,
            rewards=torch.from_numpy(rewards),
            executed=torch.from_numpy(flags[0]),
            terminations=torch.from_numpy(flags[1]),
            truncations=torch.from_numpy(flags[2]),
            success_once=torch.from_numpy(success[0]),
            success_at_end=torch.from_numpy(success[1]),
            lost=torch.zeros(self.num_envs, dtype=torch.bool),
            final_obs=last if len(ended) else None,
            episodes=episodes,
        )

    def _begin(self, indices: list[int], seeds: Sequence[int]) -> None:
        where = np.asarray(indices, dtype=np.int64)
        self.begin_scenes(where, seeds)
        self._book.begin(indices, seeds)
        rows = own_observations(self.observe_scenes(where))
        if indices == list(range(self.num_envs)):
            self._obs = rows
        else:
            self._obs = with_rows(self._obs, indices, rows)

    def _chosen(self, indices: Sequence[int] | None) -> list[int]:
        if indices is None:
            return list(range(self.num_envs))
        chosen = [int(index) for index in indices]
        if len(set(chosen)) != len(chosen) or not all(0 <= index < self.num_envs for index in chosen):
            raise UserError(f"reset: indices {chosen} must be different scenes from 0 to {self.num_envs - 1}.")
        return chosen

    def _checked(self, actions: torch.Tensor) -> NDArray[np.float32]:
        if not self._book.begun:
            raise PlugRLError(f"{type(self).__name__} was given actions before its first reset.")
        return checked_actions(actions, self.num_envs, self._action_dim)


def checked_actions(actions: torch.Tensor, num_envs: int, action_dim: int) -> NDArray[np.float32]:
    """Return actions [N, C, D] as NumPy float32. Raises UserError for another shape or a value that is not finite."""
    shape = tuple(actions.shape)
    if len(shape) != 3 or shape[0] != num_envs or shape[1] < 1 or shape[2] != action_dim:
        raise UserError(
            f"The environment takes actions [scenes, chunk, action_dim] = [{num_envs}, C, {action_dim}], not "
            f"{list(shape)}. The policy's action_dim must be {action_dim}."
        )
    values: NDArray[np.float32] = np.asarray(actions.detach().cpu(), dtype=np.float32)
    if not np.isfinite(values).all():
        raise UserError("The policy gave an action that is not finite: its weights or its inputs are broken.")
    return values
