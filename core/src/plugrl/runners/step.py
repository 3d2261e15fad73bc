"""One step of a loop: its number, its clock and its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Step:
    """What a runner writes down while it does one step. Steps count from 1."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seconds: dict[str, float] = {}
        self.metrics: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of the block to ``timing_s/<phase>``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def record(self, metrics: Mapping[str, float]) -> None:
        """Add metrics, given by their full names."""
        self.metrics.update(metrics)

    def stop_clock(self) -> None:
        """Set ``timing_s/step`` to the time since the step began."""
        self.seconds["step"] = time.perf_counter() - self._began
