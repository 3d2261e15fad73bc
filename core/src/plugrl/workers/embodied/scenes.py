"""How the scenes of a run are shared out, and the seeds of their episodes.

Scenes are numbered through all workers. A *slice* is what is stepped at once: the scenes of one pipeline stage of one
worker. A slice is acted in by one rollout worker, whatever their number, so that the numbers of a run depend on the
slices alone and not on where anything is placed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_TRAINING_SEED = 2**32
"""Seeds below are for evaluations, so training never begins an episode that the policy is measured in."""

_SEEDS = 2**52 - FIRST_TRAINING_SEED


@dataclass(frozen=True)
class Scenes:
    """``total`` scenes over so many environment workers, in so many stages each; ``group`` neighbours begin alike."""

    total: int
    workers: int
    stages: int
    group: int = 1

    @property
    def in_slice(self) -> int:
        """Scenes that are stepped at once."""
        return self.total // (self.workers * self.stages)

    @property
    def slices(self) -> int:
        """Slices of all workers."""
        return self.workers * self.stages

    def slices_of(self, worker: int) -> range:
        """Return the slices of an environment worker, one for each stage."""
        return range(worker * self.stages, (worker + 1) * self.stages)

    def worker_of(self, index: int) -> int:
        """Return the environment worker of a slice."""
        return index // self.stages

    def first(self, index: int) -> int:
        """Return the first scene of a slice."""
        return index * self.in_slice

    def training_seeds(self, index: int, *, seed: int, step: int, epoch: int) -> list[int]:
        """Return the seeds of a slice's episodes in one pass; scenes of a group have the same one."""
        first = self.first(index)
        return [
            FIRST_TRAINING_SEED + derived(seed, step, epoch, scene // self.group) % _SEEDS
            for scene in range(first, first + self.in_slice)
        ]

    def evaluation_seeds(self, index: int, *, seed: int, epoch: int) -> list[int]:
        """Return the seeds of a slice's episodes in one pass of an evaluation: the same at every evaluation."""
        first = self.first(index)
        return [seed + (epoch * self.total + scene) // self.group for scene in range(first, first + self.in_slice)]


def rollout_of(index: int, workers: int) -> int:
    """Return the rollout worker that acts in a slice."""
    return index % workers


def derived(*numbers: int) -> int:
    """Return a whole number below 2**63 that depends on these alone."""
    text = "/".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def acting_seed(seed: int, step: int, epoch: int, index: int) -> int:
    """Return the seed of the draws of a slice in one pass."""
    return derived(seed, step, epoch, index, 1)


def every_slice(scenes: Scenes, worker: int, rollouts: int) -> Sequence[int]:
    """Return the slices that a rollout worker acts in."""
    return [index for index in range(scenes.slices) if rollout_of(index, rollouts) == worker]
