"""What this process did and when: spans and instants in a ring in memory, written as Chrome-trace JSON lines.

Off unless :func:`enable` is called or ``PLUGRL_TRACE`` is set to anything but 0; a call then costs one look
at a global. Times are microseconds of the wall clock, advanced by the monotonic clock, so that the events of several
processes of one machine fit together and no span is shorter than nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

VARIABLE = "PLUGRL_TRACE"
CAPACITY = 65_536
"""Events that are kept; older ones make room."""

Event = dict[str, Any]

_ring: deque[Event] | None = None
_OFF: AbstractContextManager[Any] = nullcontext()
_EPOCH_US = time.time_ns() / 1e3 - time.perf_counter_ns() / 1e3


def enable(capacity: int = CAPACITY) -> None:
    """Record from now on, the last ``capacity`` events; what was recorded before is kept."""
    global _ring
    _ring = deque(_ring or (), maxlen=capacity)


def disable() -> None:
    """Record no longer, and drop what was recorded."""
    global _ring
    _ring = None


def enabled() -> bool:
    """Whether events are recorded: ask before attributes are computed that cost time."""
    return _ring is not None


def now_us() -> float:
    """Return the time of the trace in microseconds."""
    return _EPOCH_US + time.perf_counter_ns() / 1e3


def span(name: str, **attributes: Any) -> AbstractContextManager[Any]:
    """Return a context manager that records how long its block took.

    Entered, it gives the attributes as a dict, to which the block may add (None while nothing is recorded).
    """
    return _OFF if _ring is None else _span(name, attributes)


def instant(name: str, **attributes: Any) -> None:
    """Record that something happened now."""
    if _ring is not None:
        _ring.append(_event(name, "i", now_us(), attributes) | {"s": "t"})


def events() -> list[Event]:
    """Return what is recorded, oldest first; attributes stand under ``args``."""
    return list(_ring or ())


def take() -> list[Event]:
    """Return what is recorded, oldest first, and forget it."""
    ring = _ring
    return [] if ring is None else [ring.popleft() for _ in range(len(ring))]


def flush(path: str | Path) -> int:
    """Append what is recorded to a file, an event a line, and forget it; return the number of events."""
    ring = _ring
    if ring is None:
        return 0
    taken = [ring.popleft() for _ in range(len(ring))]
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(event, default=str) + "\n" for event in taken)
    return len(taken)


@contextmanager
def _span(name: str, attributes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    start = now_us()
    try:
        yield attributes
    finally:
        ring = _ring
        if ring is not None:
            ring.append(_event(name, "X", start, attributes) | {"dur": now_us() - start})


def _event(name: str, phase: str, time_us: float, attributes: dict[str, Any]) -> Event:
    return {
        "name": name, "ph": phase, "ts": time_us, "pid": os.getpid(), "tid": threading.get_native_id(),
        "args": attributes,
    }  # fmt: skip


if os.environ.get(VARIABLE, "0") != "0":
    enable()
