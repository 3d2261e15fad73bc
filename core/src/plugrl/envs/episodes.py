"""The state of running episodes: who runs, since when, how well, from which seed. One owner, used by every environment.

An :class:`EpisodeBook` holds the state of ``N`` scenes. A simulator says what a step gave (:class:`SceneOutcome`); the
book decides whether an episode ended, by termination or by time, and hands out the record of each that did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plugrl.errors import UserError

SEED_LIMIT = 2**52
"""Seeds that are given lie below; those of later episodes, which follow from them, lie from here to twice as much. So
no episode of training ever has a seed that was kept for an evaluation."""

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


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One episode, when it is over.

    index: its scene. seed: what it was begun with. return_: sum of its rewards. length: actions that were carried out.
    success_once: whether the task was solved at any of its steps; success_at_end: at its last one. terminated: the task
    ended it, otherwise the time ran out. dropped: its simulator died; the values are those of its last whole chunk.
    """

    index: int
    seed: int
    return_: float
    length: int
    success_once: bool
    success_at_end: bool
    terminated: bool = False
    dropped: bool = False

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
        ignore_terminations: what the task ends goes on until the time runs out; success is recorded all the same.
    """

    def __init__(self, num_envs: int, *, max_episode_steps: int | None, ignore_terminations: bool = False) -> None:
        self.max_episode_steps = max_episode_steps
        self.ignore_terminations = ignore_terminations
        self.running = np.zeros(num_envs, dtype=np.bool_)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.returns = np.zeros(num_envs, dtype=np.float64)
        self.success_once = np.zeros(num_envs, dtype=np.bool_)
        self.success_at_end = np.zeros(num_envs, dtype=np.bool_)
        self.terminated = np.zeros(num_envs, dtype=np.bool_)
        self.seeds: list[int] = [-1] * num_envs

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

    def advance(self, active: NDArray[np.bool_], earned: NDArray[np.floating], outcome: SceneOutcome
                ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # fmt: skip
        """Note one step of the scenes ``active`` [N] and return which of them terminated and which were truncated.

        ``earned`` [N] holds the rewards of the active scenes, and zero for the others.
        No scene is in both: what the task ended was not cut off.
        """
        success, truncated = outcome.success & active, outcome.truncated
        self.lengths += active
        self.returns += earned
        self.success_once |= success
        np.copyto(self.success_at_end, success, where=active)
        if self.max_episode_steps is not None:
            late = self.lengths >= self.max_episode_steps
            truncated = late if truncated is None else late | truncated
        if self.ignore_terminations:
            terminated = np.zeros_like(active)
        else:
            terminated = outcome.terminated & active
            self.terminated |= terminated
        truncated = np.zeros_like(active) if truncated is None else truncated & active & ~terminated
        self.running &= ~(terminated | truncated)
        return terminated, truncated

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
        )
