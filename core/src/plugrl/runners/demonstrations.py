"""Demonstrations of an environment's expert, kept where they succeed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plugrl.data.observations import ACTION, frame_features, stack_frames
from plugrl.envs.base import ChunkResult, VecEnv
from plugrl.errors import UserError

Frames = dict[str, NDArray[Any]]

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class Demonstration:
    """A successful episode: features [T, ...], the instruction, its seed and its return."""

    frames: Frames
    task: str
    seed: int
    return_: float

    @property
    def length(self) -> int:
        """Actions."""
        return len(self.frames[ACTION])


@dataclass
class Tally:
    """What became of the attempts."""

    attempts: int = 0
    kept: int = 0
    failed: int = 0
    dropped: int = 0


@dataclass
class _Attempt:
    """An episode that runs: its number, what was seen and done so far, and the noise that disturbs it."""

    number: int
    seed: int
    random: np.random.Generator
    frames: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    task: str = ""


class Collector:
    """Lets an environment's expert act until enough of its episodes succeeded.

    Attempt k has the seed ``first_seed + k``, and attempts are given out in that order, in the order of which they are
    kept too. No episode is kept because it was short: once an attempt has begun, it counts.

    Args:
        env: built with ``auto_reset`` false.
        episodes: successes that are wanted.
        first_seed: seed of the first attempt.
        noise: deviation of what is added to each action when it is carried out; the expert's own is recorded, so that
            the demonstrations show the way back.
        max_attempts: after so many the search ends with an error.
    """

    def __init__(
        self, env: VecEnv, *, episodes: int, first_seed: int, noise: float = 0.0, max_attempts: int | None = None
    ) -> None:
        self.env = env
        self.episodes = episodes
        self.noise = noise
        self.tally = Tally()
        self._first_seed = first_seed
        self._most = max_attempts if max_attempts is not None else 10 * episodes
        self._scenes: list[_Attempt | None] = [None] * env.num_envs
        self._waiting: dict[int, Demonstration | None] = {}
        self._next = 0

    def run(self, keep: Callable[[Demonstration], None], progress: Callable[[Tally], None] | None = None) -> Tally:
        """Hand every demonstration to ``keep``, in the order of their seeds.

        Raises UserError when the expert does not succeed often enough, and UnsupportedCapability without one.
        """
        spoke = time.monotonic()
        obs = self._begin(list(range(self.env.num_envs)), None)
        while any(self._scenes):
            wanted = self.env.expert_actions().to(torch.float32)
            result = self.env.chunk_step(self._disturbed(wanted)[:, None])
            ended = self._record(obs, wanted, result)
            self._flush(keep)
            obs = self._begin(ended, result.obs) if ended else result.obs
            if progress is not None and (time.monotonic() - spoke >= PROGRESS_SECONDS or not any(self._scenes)):
                spoke = time.monotonic()
                progress(self.tally)
        if self.tally.kept < self.episodes:
            raise UserError(
                f"demos.episodes: the expert solved {self.tally.kept} of {self.tally.attempts} attempts, and "
                f"{self.episodes} demonstrations are wanted. Raise demos.max_attempts, which is {self._most}, lower "
                "demos.noise, or give episodes more steps (env.demos.max_episode_steps)."
            )
        return self.tally

    # ----------------------------------------------------------------- one step
    def _begin(self, scenes: list[int], obs: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Begin attempts in scenes that are free, as many as may still be needed; returns the new observations."""
        chosen, seeds = [], []
        for scene in scenes:
            self._scenes[scene] = None
            underway = self.tally.kept + sum(found is not None for found in self._waiting.values())
            underway += sum(attempt is not None for attempt in self._scenes)
            if underway >= self.episodes or self.tally.attempts >= self._most:
                continue
            seed = self._first_seed + self.tally.attempts
            self._scenes[scene] = _Attempt(self.tally.attempts, seed, np.random.default_rng(seed))
            self.tally.attempts += 1
            chosen.append(scene)
            seeds.append(seed)
        if obs is None:  # at the start every scene needs an episode, also one that nothing is asked of
            every = list(range(self.env.num_envs))
            seeds = [*seeds, *(self._first_seed + self._most + scene for scene in every if scene not in chosen)]
            obs, _ = self.env.reset(seed=seeds, indices=[*chosen, *(scene for scene in every if scene not in chosen)])
        elif chosen:
            obs, _ = self.env.reset(seed=seeds, indices=chosen)
        texts = obs.get("task_descriptions")
        for scene in chosen:
            attempt = self._scenes[scene]
            assert attempt is not None
            attempt.task = str(texts[scene]) if texts is not None else ""
        return obs

    def _disturbed(self, actions: torch.Tensor) -> torch.Tensor:
        if not self.noise:
            return actions
        noise = np.zeros(tuple(actions.shape), dtype=np.float32)
        for scene, attempt in enumerate(self._scenes):
            if attempt is not None:
                noise[scene] = attempt.random.normal(0.0, self.noise, actions.shape[1])
        return actions + torch.from_numpy(noise)

    def _record(self, obs: Mapping[str, Any], actions: torch.Tensor, result: ChunkResult) -> list[int]:
        """Note what was seen and done in each scene; returns the scenes whose episode is over."""
        ended = []
        records = {record.index: record for record in result.episodes}
        for scene, attempt in enumerate(self._scenes):
            if attempt is None:
                continue
            if bool(result.lost[scene]):
                self.tally.dropped += 1
                self._waiting[attempt.number] = None
                ended.append(scene)
                continue
            if bool(result.executed[scene, 0]):
                attempt.frames.append(
                    {
                        **frame_features(obs, scene),
                        ACTION: actions[scene].numpy().copy(),
                        "next.reward": np.asarray(result.rewards[scene, 0].item(), dtype=np.float32),
                        "next.done": np.asarray(result.dones[scene, 0].item()),
                        "next.success": np.asarray(result.success_at_end[scene].item()),
                    }
                )
            if bool(result.dones[scene, 0]):
                ended.append(scene)
                record = records[scene]
                solved = record.success_at_end and bool(attempt.frames)
                self.tally.failed += not solved
                self._waiting[attempt.number] = (
                    Demonstration(stack_frames(attempt.frames), attempt.task, attempt.seed, record.return_)
                    if solved else None
                )  # fmt: skip
        return ended

    def _flush(self, keep: Callable[[Demonstration], None]) -> None:
        """Hand on what has no earlier attempt before it that still runs."""
        while self._next in self._waiting:
            found = self._waiting.pop(self._next)
            self._next += 1
            if found is not None:
                keep(found)
                self.tally.kept += 1
