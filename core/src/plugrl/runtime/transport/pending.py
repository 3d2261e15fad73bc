"""Something that is under way: waited for with a deadline by a thread, or awaited by a coroutine.

A pending operation ends in exactly one of three ways: with a value, with an error, or cancelled. Who resolves it learns
whether that came too late, so that what was on its way to a cancelled operation can be given back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from plugrl.errors import CallCancelled, RuntimeTimeout

T = TypeVar("T")
U = TypeVar("U")

DEFAULT_TIMEOUT_S = 60.0
"""Of look-ups, point-to-point transfers and channels. None waits for ever, 0 does not wait."""
_TICK_S = 0.25
_LONG_S = 3600.0

_watch: Callable[[], None] | None = None


def set_watch(check: Callable[[], None] | None) -> None:
    """Call ``check`` four times a second during every wait of a thread; what it raises ends the wait."""
    global _watch
    _watch = check


class Pending(Generic[T]):
    """One operation.

    Args:
        what: the operation, for messages: "actor:0 to receive from env:1".
        finish: makes the result of the value that arrived; runs once, in the thread that asks first.
        on_cancel: called with this object after a cancellation, outside all locks.
        on_drop: called with the value when nobody took it before this object died; may not block or lock.
    """

    def __init__(
        self,
        what: str,
        *,
        finish: Callable[[Any], T] | None = None,
        on_cancel: Callable[[Pending[T]], None] | None = None,
        on_drop: Callable[[Any], None] | None = None,
    ) -> None:
        self.what = what
        self.started = time.monotonic()
        self._finish = finish
        self._on_cancel = on_cancel
        self._on_drop = on_drop
        self._mutex = threading.Lock()
        self._state = "pending"
        self._value: Any = None
        self._error: BaseException | None = None
        self._taken = False
        self._callbacks: list[Callable[[], None]] = []

    # ----------------------------------------------------------------- for who waits
    def wait(self, timeout: float | None = DEFAULT_TIMEOUT_S) -> T:
        """Return the result; may be called again. Raises the operation's error, CallCancelled, or RuntimeTimeout."""
        if self._state == "pending" and not self._wait(timeout):
            raise RuntimeTimeout(
                f"{self.what}: nothing within {timeout:g} s (begun {time.monotonic() - self.started:.1f} s ago)."
            )
        return self.result()

    def done(self) -> bool:
        """Whether it has ended; never blocks."""
        return self._state != "pending"

    def exception(self) -> BaseException | None:
        """Return the error it ended with, None while it has not; never blocks."""
        return self._error

    def cancel(self) -> bool:
        """Give it up; return False when it had ended already."""
        if not self._end("cancelled", None, CallCancelled(f"{self.what}: cancelled.")):
            return False
        if self._on_cancel is not None:
            self._on_cancel(self)
        return True

    def result(self) -> T:
        """Return the result of what has ended."""
        with self._mutex:
            if self._error is None and not self._taken:
                assert self._state == "resolved", "the operation has not ended"
                self._taken = True
                if self._finish is not None:
                    try:
                        self._value = self._finish(self._value)
                    except Exception as error:  # Kept for whoever asks again.
                        self._error = error
        if self._error is not None:
            raise self._error
        return self._value

    def then(self, function: Callable[[T], U]) -> Pending[U]:
        """Return an operation whose result is what ``function`` makes of this one's."""

        def give_up(_: Pending[U]) -> None:
            self.cancel()

        def pass_on() -> None:
            after.resolve(None)

        after: Pending[U] = Pending(self.what, finish=lambda _: function(self.result()), on_cancel=give_up)
        self.add_done_callback(pass_on)
        return after

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it ends, in the thread that ends it; at once when it has."""
        with self._mutex:
            if self._state == "pending":
                self._callbacks.append(callback)
                return
        callback()

    async def async_wait(self, timeout: float | None = DEFAULT_TIMEOUT_S) -> T:
        """Do as :meth:`wait` without blocking the event loop; cancelling the coroutine cancels the operation."""
        if not self.done():
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            self.add_done_callback(lambda: _notify(loop, ended))
            try:
                await asyncio.wait_for(ended.wait(), timeout)
            except TimeoutError:
                if not self.done():
                    raise RuntimeTimeout(f"{self.what}: nothing within {timeout:g} s.") from None
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    def __await__(self) -> Generator[Any, None, T]:
        return self.async_wait().__await__()

    # ----------------------------------------------------------------- for who carries it out
    def resolve(self, value: Any) -> bool:
        """End it with a value; False when it had ended already, and the value is not taken."""
        return self._end("resolved", value, None)

    def fail(self, error: BaseException) -> bool:
        """End it with an error; False when it had ended already."""
        return self._end("failed", None, error)

    def _end(self, state: str, value: Any, error: BaseException | None) -> bool:
        with self._mutex:
            if self._state != "pending":
                return False
            self._value, self._error, self._state = value, error, state
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        return True

    def _wait(self, timeout: float | None) -> bool:
        gate = threading.Lock()
        gate.acquire()
        self.add_done_callback(gate.release)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            step = _LONG_S if _watch is None else _TICK_S
            if gate.acquire(timeout=step if left is None else min(step, left)):
                return True
            if left is not None and left <= step:
                return self.done()
            if _watch is not None:
                _watch()

    def __del__(self) -> None:
        if self._on_drop is not None and self._state == "resolved" and not self._taken:
            self._on_drop(self._value)


def _notify(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(ended.set)
    except RuntimeError:
        pass  # The loop of who waited is closed.
