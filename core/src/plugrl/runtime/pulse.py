"""A worker's pulse: a page of memory that says it runs, what it does, and which of its calls are to stop.

A call to the actor would queue behind the method that runs, so the page is an anonymous file that other processes of
the node open through ``/proc``: it leaves nothing behind, on any node. A thread of the worker renews the beat; it
stands still while the process is stopped, or while a call into C keeps Python's lock.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIZE = mmap.PAGESIZE
_BEAT = 0
_SINCE = 8
_CANCELLED = 16
_CANCELLED_SLOTS = 32
_PHASE = _CANCELLED + 8 * _CANCELLED_SLOTS
_PHASE_BYTES = 200
_NUMBER = struct.Struct("<Q")

CANCEL_SIGNAL = signal.SIGUSR2
"""What the beating thread sends to the main thread when the call that runs there is to stop."""


class Interrupted(BaseException):
    """Raised inside a method whose call was cancelled; no ``Exception``, so that a method does not swallow it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a page says: a beat that differs from the last one seen means that the worker runs.

    phase: what the worker does, ``update()`` for instance. phase_s: seconds since it began.
    """

    beat: int
    phase: str
    phase_s: float


class Pulse:
    """The worker's side. ``descriptor`` is what :class:`PulseView` needs, -1 where the system has no such files."""

    def __init__(self, period_s: float) -> None:
        self.descriptor = -1
        self._page: mmap.mmap | None = None
        self._running = 0
        self._interrupted = 0
        self._period_s = period_s
        self._ended = threading.Event()
        if not hasattr(os, "memfd_create"):
            return
        self.descriptor = os.memfd_create("plugrl-pulse")
        os.ftruncate(self.descriptor, _SIZE)
        self._page = mmap.mmap(self.descriptor, _SIZE)
        self.phase("starting")
        signal.signal(CANCEL_SIGNAL, self._interrupt)
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def phase(self, text: str) -> None:
        """Say what the worker does from now on."""
        if self._page is not None:
            _write(self._page, _SINCE, time.monotonic_ns())
            self._page[_PHASE : _PHASE + _PHASE_BYTES] = text.encode()[:_PHASE_BYTES].ljust(_PHASE_BYTES, b"\0")

    @contextmanager
    def running(self, call: int, phase: str) -> Iterator[None]:
        """Let the block be interrupted by a request to cancel ``call``; raises Interrupted, also for an earlier one."""
        self.phase(phase)
        if self._is_cancelled(call):
            raise Interrupted
        self._running = call
        try:
            yield
        finally:
            self._running = 0
            self.phase("idle")

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _is_cancelled(self, call: int) -> bool:
        return self._page is not None and _read(self._page, _slot(call)) == call

    def _beat(self) -> None:
        assert self._page is not None
        main = threading.main_thread().ident
        assert main is not None
        while True:
            _write(self._page, _BEAT, time.monotonic_ns())
            running = self._running
            # Again at each beat, since one that comes just before a system call does not end it, but a method is
            # interrupted once: it may take long to clean up.
            if running and running != self._interrupted and self._is_cancelled(running):
                signal.pthread_kill(main, CANCEL_SIGNAL)
            if self._ended.wait(self._period_s):
                return

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        # The signal may be late: then another call runs, or none.
        if self._running and self._running != self._interrupted and self._is_cancelled(self._running):
            self._interrupted = self._running
            raise Interrupted


class PulseView:
    """The page of a worker of this node, seen from another process; it can still be read when the worker is dead."""

    def __init__(self, pid: int, descriptor: int) -> None:
        """Open it; raises OSError when it cannot be, as for a process that is gone."""
        with open(f"/proc/{pid}/fd/{descriptor}", "r+b", buffering=0) as file:
            self._page = mmap.mmap(file.fileno(), _SIZE)

    def read(self) -> Reading:
        """Return what the page says now."""
        text = self._page[_PHASE : _PHASE + _PHASE_BYTES].rstrip(b"\0").decode(errors="replace")
        since = (time.monotonic_ns() - _read(self._page, _SINCE)) / 1e9
        return Reading(beat=_read(self._page, _BEAT), phase=text, phase_s=since)

    def cancel(self, call: int) -> None:
        """Ask the worker to stop a call that runs or is queued; it looks at each beat."""
        _write(self._page, _slot(call), call)

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()


def _slot(call: int) -> int:
    return _CANCELLED + 8 * (call % _CANCELLED_SLOTS)


def _read(page: mmap.mmap, offset: int) -> int:
    value: int = _NUMBER.unpack_from(page, offset)[0]
    return value


def _write(page: mmap.mmap, offset: int, value: int) -> None:
    _NUMBER.pack_into(page, offset, value)
