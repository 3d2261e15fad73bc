"""Runs the bodies of distributed checks on ranks whose device is honest or wrong, in one set of processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from plugrl.testing.rank_pool import RankPool


class MutantPool:
    """Stands for the pool of a level: runs each body with ``VDEV_MUTANT`` set to :attr:`mutant`."""

    def __init__(self, pool: RankPool) -> None:
        self._pool = pool
        self.mutant = ""

    def run(self, function: Callable[..., list[str]], *args: Any, world: int, timeout_s: float) -> list[list[str]]:
        """Return the findings of each rank."""
        return self._pool.run(as_mutant, self.mutant, function, *args, world=world, timeout_s=timeout_s)


def as_mutant(rank: int, world: int, mutant: str, function: Callable[..., list[str]], *args: Any) -> list[str]:
    """Run ``function`` on a rank; the device asks for its mutant at every collective."""
    os.environ["VDEV_MUTANT"] = mutant
    try:
        return function(rank, world, *args)
    finally:
        del os.environ["VDEV_MUTANT"]
