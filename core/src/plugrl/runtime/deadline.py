"""How long to wait: a setting where nothing is said, for ever where ``None`` is said, and not at all for 0."""

from __future__ import annotations

import enum
import time


class _Default(enum.Enum):
    TIMEOUT = "the default"


DEFAULT = _Default.TIMEOUT
"""Stands for the setting that a wait's description names."""

Timeout = float | None | _Default
"""Seconds; None waits for ever, 0 does not wait."""


class Deadline:
    """A point in time to which waits of several steps share the way."""

    def __init__(self, timeout: Timeout, default: float | None) -> None:
        self.limit = default if isinstance(timeout, _Default) else timeout
        self._end = None if self.limit is None else time.monotonic() + self.limit

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self._end is not None and time.monotonic() >= self._end

    def left(self, at_most: float) -> float:
        """Return the seconds left, 0 or more and at most the given ones."""
        return at_most if self._end is None else min(at_most, max(0.0, self._end - time.monotonic()))

    def remaining(self) -> float | None:
        """Return the seconds left as the timeout of a further wait; None when it may last for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())
