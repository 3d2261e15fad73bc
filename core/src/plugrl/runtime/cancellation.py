"""Ending the waits of other threads: who waits inside a scope gives up soon after the scope is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from plugrl.errors import CallCancelled


class Cancellation:
    """A flag that several threads share; the first reason is kept."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""

    def cancel(self, reason: str) -> None:
        """Make everything that runs in a scope of this flag end at its next wait."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    @property
    def cancelled(self) -> bool:
        """Whether :meth:`cancel` was called."""
        return self._event.is_set()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Let the waits of this thread end when the flag is set."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Cancellation | None] = ContextVar("plugrl_cancellation", default=None)


def raise_if_cancelled() -> None:
    """Raise CallCancelled in a scope that was cancelled; every wait of the runtime asks at each of its ticks."""
    current = _current.get()
    if current is not None and current.cancelled:
        raise CallCancelled(current.reason)
