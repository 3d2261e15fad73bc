"""Copies between pieces of host memory by several threads: one alone does not use the bandwidth that there is."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

_MOST_THREADS = 4
_PART_BYTES = 4 * 2**20
"""What a thread takes at a time: small, so that one that is held up does not hold up the others."""


class Copier:
    """Copies tensor by tensor. Threads are started by the first large one and stay until :meth:`close`."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(_MOST_THREADS, usable_cores())
        self._pool: ThreadPoolExecutor | None = None

    def copy(self, place: torch.Tensor, tensor: torch.Tensor) -> None:
        """Do what ``place.copy_(tensor)`` does, casts included; ``tensor`` is of no more use when it returns."""
        parts = -(-max(place.nbytes, tensor.nbytes) // _PART_BYTES)
        # A copy between devices is one piece of work, and a torch with several threads of its own shares out itself.
        if parts < 2 or min(parts, self._threads) < 2 or torch.get_num_threads() > 1 or not _is_flat(place, tensor):
            place.copy_(tensor)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads - 1, thread_name_prefix="plugrl-copy")
        pairs = list(zip(place.view(-1).chunk(parts), tensor.view(-1).chunk(parts), strict=True))
        turns = itertools.count()
        helpers = [self._pool.submit(_take_turns, pairs, turns) for _ in range(min(parts, self._threads) - 1)]
        try:
            _take_turns(pairs, turns)
        finally:
            for helper in helpers:
                if not helper.cancel():
                    helper.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None


def _take_turns(pairs: list[tuple[torch.Tensor, torch.Tensor]], turns: itertools.count[int]) -> None:
    """Copy the parts that no other thread has taken."""
    while (turn := next(turns)) < len(pairs):
        place, tensor = pairs[turn]
        place.copy_(tensor)


def _is_flat(place: torch.Tensor, tensor: torch.Tensor) -> bool:
    return all(item.device.type == "cpu" and item.is_contiguous() for item in (place, tensor))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    with suppress(AttributeError):  # Not every system lets a process be bound to cores.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
