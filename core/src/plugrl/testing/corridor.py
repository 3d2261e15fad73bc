"""The smallest simulator: positions on a line, exact, for tests of whatever runs environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plugrl.envs.config import EnvParams
from plugrl.envs.episodes import SceneOutcome
from plugrl.envs.episodic import EpisodicEnv


class Corridor(EpisodicEnv):
    """Scenes on a line: the position starts below 1 by the seed and moves by the action; at 3 the task is solved.

    The reward is the distance moved. The task ends at 4, so that it can be solved and lost again before.
    """

    def __init__(self, params: EnvParams, max_episode_steps: int | None = 12) -> None:
        super().__init__(params, action_dim=1, max_episode_steps=max_episode_steps)
        self.position = np.zeros(params.num_envs, dtype=np.float32)
        self.moves = np.zeros(params.num_envs, dtype=np.int64)
        self.starts: list[tuple[int, int]] = []
        self.closed = 0

    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Put the scenes where their seeds say, and note it in ``starts``."""
        for index, seed in zip(indices.tolist(), seeds, strict=True):
            self.position[index] = np.random.default_rng(seed).random()
            self.moves[index] = 0
            self.starts.append((index, seed))

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Move by the action."""
        moved = np.where(active, actions[:, 0], 0.0).astype(np.float32)
        self.position += moved
        self.moves += active
        return SceneOutcome(rewards=moved, terminated=self.position >= 4, success=self.position >= 3)

    def observe_scenes(self, indices: NDArray[np.int64]) -> Mapping[str, Any]:
        """The position, and a text."""
        return {
            "states": self.position[indices, None],
            "task_descriptions": [f"walk from scene {index}" for index in indices],
        }

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def corridor(num_envs: int, **settings: Any) -> Corridor:
    """Return a corridor with the given settings of EnvParams."""
    return Corridor(EnvParams(num_envs=num_envs, **settings))
