"""Telling a person how far measuring has come."""

from __future__ import annotations

import time
from collections.abc import Callable


class Progress:
    """Counts ``total`` parts of about equal length and says before each what it is and how long the rest may take."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self._total = total
        self._say = say
        self._count = 0
        self._began = time.perf_counter()

    def begin(self, what: str) -> None:
        """Say what comes next."""
        self._say(f"measuring {self._count + 1}/{self._total}: {what}{self._left()}")

    def done(self) -> None:
        """Note that a part is done."""
        self._count += 1

    def _left(self) -> str:
        if not self._count:
            return ""
        seconds = (time.perf_counter() - self._began) / self._count * (self._total - self._count)
        return f" (about {seconds:.0f} s left)" if seconds < 120 else f" (about {seconds / 60:.0f} min left)"
