"""The smallest simulator: positions on a line, exact, for tests of whatever runs environments."""

from __future__ import annotations

import os
import signal
import time
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
            "task_descriptions": [f"walk on from {int(position)}" for position in self.position[indices]],
        }

    def close(self) -> None:
        """Count the calls."""
        self.closed += 1


def corridor(num_envs: int, **settings: Any) -> Corridor:
    """Return a corridor with the given settings of EnvParams."""
    return Corridor(EnvParams(num_envs=num_envs, **settings))


class FaultyCorridor(Corridor):
    """The corridor that does what the first action, or the seed, of any scene says, when it is one of FAULTS."""

    def __init__(self, params: EnvParams) -> None:
        super().__init__(params)
        print("the simulator is there", flush=True)

    def begin_scenes(self, indices: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Fail where a seed says so."""
        for seed in seeds:
            FAULTS.get(seed, _nothing)()
        super().begin_scenes(indices, seeds)

    def advance_scenes(self, actions: NDArray[np.float32], active: NDArray[np.bool_]) -> SceneOutcome:
        """Fail where an action says so."""
        for action in actions[active, 0].tolist():
            FAULTS.get(int(action), _nothing)()
        return super().advance_scenes(actions, active)

    def expert_scenes(self) -> NDArray[np.float32]:
        """Half the way to the goal."""
        return ((3.5 - self.position[:, None]) / 2).astype(np.float32)

    def render_scene(self, index: int) -> NDArray[np.uint8]:
        """A picture in the shade of the position."""
        return np.full((4, 6, 3), int(self.position[index] * 10), dtype=np.uint8)


def _nothing() -> None:
    return None


def _raise() -> None:
    raise ArithmeticError("the joint is unstable")


def _hang() -> None:
    while True:
        time.sleep(0.05)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit() -> None:
    print("the simulator gives up", flush=True)
    os._exit(3)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


RAISE, HANG, STOP, EXIT, KILL = 1001, 1002, 1003, 1004, 1005
FAULTS = {RAISE: _raise, HANG: _hang, STOP: _stop, EXIT: _exit, KILL: _kill}
"""Action or seed -> what the simulator then does."""
