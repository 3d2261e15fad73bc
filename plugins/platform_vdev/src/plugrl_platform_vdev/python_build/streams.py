"""Streams and events of the Python build: work is done at once and in order, so there is nothing to wait for."""

from __future__ import annotations

import time
from typing import Any


class Event:
    """A point in the work of a stream."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._timing, self._at = enable_timing, 0.0

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Return: it is past."""

    def synchronize(self) -> None:
        """Return: it is past."""

    def query(self) -> bool:
        """True: it is past."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds until ``end``. Raises RuntimeError for events that were made without timing."""
        if not (self._timing and end._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        return (end._at - self._at) * 1e3


class Stream:
    """The one queue of a device, under any number of names."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = device, priority

    def wait_stream(self, other: Any) -> None:
        """Return: its work is done."""

    def wait_event(self, event: Any) -> None:
        """Return: it is past."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Return: its work is done."""

    def query(self) -> bool:
        """True: its work is done."""
        return True

    def __eq__(self, other: object) -> bool:
        """Streams of one device are one."""
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(str(self.device))
