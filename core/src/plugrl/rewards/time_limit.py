"""A deadline for code of the user's that the driver calls and waits for."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from plugrl.errors import UserError

_AGAIN_S = 1.0
"""Code that catches everything may swallow the first ring; it gets another one every so many seconds."""


class _TimeUp(BaseException):
    """Passes through ``except Exception`` of the code that takes too long."""


@contextmanager
def time_limit(seconds: float, problem: Callable[[], str]) -> Iterator[None]:
    """End the block after ``seconds`` with a UserError of the text that ``problem`` gives then.

    By a timer's signal, so that loops, waits and regular expressions end alike. Signals reach the main thread alone: in
    another one there is no limit. A timer that was set before goes on afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _ring)
    began = time.monotonic()
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeUp:
        raise UserError(problem()) from None
    finally:
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001), every)


def _ring(number: int, frame: FrameType | None) -> None:
    raise _TimeUp
