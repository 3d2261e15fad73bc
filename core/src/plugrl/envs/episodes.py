"""The state of running episodes: who runs, since when, how well, from which seed. One owner, used by every environment.

An :class:`EpisodeBook` holds the state of ``N`` scenes and hands out the record of each episode; a simulator says what
a step gave as a :class:`SceneOutcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plugrl.errors import UserError

SEED_LIMIT = 2**52
"""Seeds that are given lie below; those of later episodes, which follow from them, lie from here to twice as much. So
no episode of training ever has a seed that was kept for an evaluation."""

_NEVER = 2**62
_LOW = SEED_LIMIT - 1
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


def next_seed(seed: int) -> int:
    """Return the seed of the episode that follows the one with ``seed`` in its scene.

    It depends on ``seed`` alone: scenes that begin alike go on alike, whichever of them ends first, and a scene whose
    simulator died goes on as it would have. The mapping is one to one on 52 bits (odd products and shifted sums), so
    two scenes never fall into the same sequence from then on.
    """
    bits = (int(seed) + 1) & _LOW
    for factor in _FACTORS:
        bits = (bits * factor) & _LOW
        bits ^= bits >> 26
    return SEED_LIMIT + bits


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int. Raises UserError unless it is a whole number from 0 to below 2 ** 53."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2 * SEED_LIMIT:
        raise UserError(f"A seed of an episode must be a whole number from 0 to below 2 ** 53, not {seed!r}.")
    return int(seed)


def spread_seeds(seed: int | Sequence[int], indices: Sequence[int]) -> list[int]:
    """Return one seed for each scene of ``indices``: a sequence as it is, one seed plus the index of the scene.

    Raises UserError for a sequence of another length and for seeds out of range.
    """
    if isinstance(seed, int | np.integer):
        return [check_seed(int(check_seed(seed)) + int(index)) for index in indices]
    if len(seed) != len(indices):
        raise UserError(f"reset was given {len(seed)} seeds for {len(indices)} scenes.")
    return [check_seed(item) for item in seed]


class SceneLabel(NamedTuple):
    """By what the episode of a scene is counted: its task, and its split where the environment has several."""

    task: str = ""
    split: str = ""


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One episode, when it is over.

    index: its scene. seed: what it was begun with. return_: sum of its rewards. length: actions that were carried out.
    success_once: whether the task was solved at any of its steps; success_at_end: at its last one. terminated: the task
    ended it, otherwise the time ran out. dropped: its simulator died; the values are those of its last whole chunk.
    label: its task and split; empty texts where the environment names none, and of some dropped ones.
    """

    index: int
    seed: int
    return_: float
    length: int
    success_once: bool
    success_at_end: bool
    terminated: bool = False
    dropped: bool = False
    label: SceneLabel = SceneLabel()

    def drop(self) -> EpisodeRecord:
        """Return the record of the same episode, dropped where it stood."""
        return replace(self, dropped=True, terminated=False)

    def at(self, index: int) -> EpisodeRecord:
        """Return the same record under another index of the scene."""
        return replace(self, index=index)


@dataclass(frozen=True, kw_only=True)
class SceneOutcome:
    """What a simulator says of one step in ``N`` scenes, NumPy arrays [N]; rows of scenes that stood still are ignored.

    rewards: float. terminated: the task itself ended the episode. success: the task is solved *now*. truncated: the
    simulator cut the episode off by itself; the limit of ``max_episode_steps`` is none of its business.
    """

    rewards: NDArray[np.floating]
    terminated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    truncated: NDArray[np.bool_] | None = None


class EpisodeBook:
    """The state of the episodes of ``num_envs`` scenes.

    Args:
        max_episode_steps: an episode is truncated after so many actions; None leaves that to the simulator.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int | None) -> None:
        self.max_episode_steps = max_episode_steps
        self.running = np.zeros(num_envs, dtype=np.bool_)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.returns = np.zeros(num_envs, dtype=np.float64)
        self.success_once = np.zeros(num_envs, dtype=np.bool_)
        self.success_at_end = np.zeros(num_envs, dtype=np.bool_)
        self.terminated = np.zeros(num_envs, dtype=np.bool_)
        self.seeds: list[int] = [-1] * num_envs
        self.labels: list[SceneLabel] = [SceneLabel()] * num_envs

    @property
    def begun(self) -> bool:
        """Whether every scene has had an episode."""
        return min(self.seeds) >= 0

    def next_seeds(self, indices: Sequence[int]) -> list[int]:
        """Return the seeds of the episodes that follow in the scenes ``indices``; before the first, the index."""
        return [next_seed(self.seeds[index]) if self.seeds[index] >= 0 else int(index) for index in indices]

    def begin(self, indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Note that new episodes with ``seeds`` begin in the scenes ``indices``."""
        where = np.asarray(indices, dtype=np.int64)
        self.running[where] = True
        self.lengths[where] = 0
        self.returns[where] = 0.0
        for state in (self.success_once, self.success_at_end, self.terminated):
            state[where] = False
        for index, seed in zip(indices, seeds, strict=True):
            self.seeds[index] = int(seed)

    def label(self, indices: Sequence[int], labels: Sequence[SceneLabel]) -> None:
        """Note by what the episodes in the scenes ``indices`` are counted; no labels leave them without."""
        for index, label in zip(indices, labels, strict=bool(labels)):
            self.labels[index] = label

    def steps_left(self) -> NDArray[np.int64]:
        """Return how many actions each scene has until the time runs out, [N]."""
        limit = _NEVER if self.max_episode_steps is None else self.max_episode_steps
        return limit - self.lengths

    def advance(self, rewards: NDArray[np.floating], executed: NDArray[np.bool_], terminated: NDArray[np.bool_],
                truncated: NDArray[np.bool_], solved: NDArray[np.bool_]) -> None:  # fmt: skip
        """Note a chunk of steps, each [N, C]; where ``executed`` is not set, nothing else is."""
        taken = executed.sum(axis=1)
        self.lengths += taken
        self.returns += rewards.sum(axis=1, dtype=np.float64)
        self.success_once |= solved.any(axis=1)
        moved = np.flatnonzero(taken)
        self.success_at_end[moved] = solved[moved, taken[moved] - 1]
        by_task = terminated.any(axis=1)
        self.terminated |= by_task
        self.running &= ~(by_task | truncated.any(axis=1))

    def advance_one(self, rewards: NDArray[np.float32], executed: NDArray[np.bool_], terminated: NDArray[np.bool_],
                    truncated: NDArray[np.bool_], solved: NDArray[np.bool_]) -> None:  # fmt: skip
        """Note one step, each [N], as :meth:`advance` does a chunk of one."""
        self.lengths += executed
        self.returns += rewards
        self.success_once |= solved
        np.copyto(self.success_at_end, solved, where=executed)
        self.terminated |= terminated
        self.running &= ~(terminated | truncated)

    def record(self, index: int) -> EpisodeRecord:
        """Return the record of the episode in scene ``index`` as it stands."""
        return EpisodeRecord(
            index=index,
            seed=self.seeds[index],
            return_=float(self.returns[index]),
            length=int(self.lengths[index]),
            success_once=bool(self.success_once[index]),
            success_at_end=bool(self.success_at_end[index]),
            terminated=bool(self.terminated[index]),
            label=self.labels[index],
        )
