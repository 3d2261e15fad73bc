"""The thread of an endpoint that does all its receiving: sockets, timers, and what other threads hand over."""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class Source(Protocol):
    """A socket that the loop looks after."""

    def fileno(self) -> int:
        """Return the descriptor."""
        ...

    def on_ready(self, readable: bool, writable: bool) -> None:
        """Take note that it can be read or written."""
        ...

    def on_fault(self, error: Exception) -> None:
        """Take note that :meth:`on_ready` raised."""
        ...


class Timer:
    """A call to come; :meth:`cancel` calls it off."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        """Do not call."""
        self.call = None


class Loop:
    """One thread. :meth:`call_soon` may be used from any thread and from finalizers; the rest from the loop's own."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._awake, selectors.EVENT_READ, None)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run ``call`` in the loop's thread. Takes no lock: it may run inside a finalizer."""
        self._calls.append(call)
        if threading.get_ident() != self._thread.ident:
            try:
                self._waker.send(b"w")
            except OSError:
                pass  # Full: it wakes anyway. Closed: nobody is left to run anything.

    def in_thread(self) -> bool:
        """Whether the caller runs in the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def call_at(self, when: float, call: Callable[[], None]) -> Timer:
        """Run ``call`` at a time of the monotonic clock."""
        timer = Timer(call)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def add(self, source: Source) -> None:
        """Look after a socket."""
        self._selector.register(source.fileno(), selectors.EVENT_READ, source)

    def want_write(self, source: Source, wanted: bool) -> None:
        """Say whether the source is to be told that it can write."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(source.fileno(), events, source)

    def remove(self, source: Source) -> None:
        """Look after it no longer."""
        try:
            self._selector.unregister(source.fileno())
        except (KeyError, ValueError):
            pass  # It was removed already.

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self.call_soon(lambda: None)
        if not self.in_thread():
            self._thread.join(timeout=5.0)
        self._selector.close()
        self._awake.close()
        self._waker.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select(self._until_next()):
                source = key.data
                if source is None:
                    self._drain()
                    continue
                try:
                    source.on_ready(bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE))
                except Exception as error:  # A fault of one connection ends that one alone.
                    logger.debug("connection failed", exc_info=True)
                    source.on_fault(error)
            self._run_calls()

    def _drain(self) -> None:
        try:
            while self._awake.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _until_next(self) -> float | None:
        if self._calls:
            return 0.0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_calls(self) -> None:
        due: list[Callable[[], None]] = []
        for _ in range(len(self._calls)):
            due.append(self._calls.popleft())
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                due.append(timer.call)
        for call in due:
            try:
                call()
            except Exception:  # The thread serves every connection of the process.
                logger.exception("a call in the thread of the endpoint failed")
