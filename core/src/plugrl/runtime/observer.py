"""Looking at the workers of one node: alive, dead, stopped or unresponsive, and where they stand.

The driver looks at those of its own node itself, and asks an actor on each other node, which nothing ever blocks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from plugrl.runtime import process
from plugrl.runtime.failure import RankInfo
from plugrl.runtime.pulse import PulseView

State = Literal["alive", "dead", "stopped", "unresponsive", "silent"]
"""silent: its whole node does not answer."""
Subject = tuple[int, str]
"""Pid and start time of a process."""

_STACKS_WAIT_S = 0.3
_STACK_LINES = 40
_STDERR_LINES = 12
_LOOK_GAP_S = 2.0
"""Without a look for longer than this, nothing is known of the time between: a suspicion starts anew."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was seen of a worker. for_s: seconds for which a stopped or unresponsive one has been seen so."""

    state: State
    for_s: float = 0.0
    phase: str = ""
    phase_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a worker says of itself: kernel (state and where it waits), stacks (Python's), stderr (its last lines)."""

    kernel: str = ""
    stacks: str = ""
    stderr: str = ""


@dataclass
class _Suspicion:
    """The last beat of a worker and the time since which it has stood still."""

    view: PulseView | None = None
    beat: int = -1
    beaten: float = 0.0
    stopped: float | None = None
    looked: float = 0.0
    last: Observation = Observation(state="alive")


class Observer:
    """Watches processes of this machine; :meth:`look` takes microseconds and may be called by several threads.

    Args:
        period_s: seconds between two beats; after four without one a worker counts as unresponsive.
    """

    def __init__(self, period_s: float) -> None:
        self._silence_s = 4 * period_s
        self._seen: dict[Subject, _Suspicion] = {}
        self._lock = threading.Lock()

    def look(self, info: RankInfo) -> Observation:
        """Return how the process is. One that a debugger holds counts as unresponsive, not as stopped."""
        with self._lock:
            seen = self._seen.setdefault((info.pid, info.started), _Suspicion())
            state = process.state(info.pid, info.started)
            if state in process.GONE:
                phase, phase_s = (seen.last.phase, seen.last.phase_s)
                if seen.view is not None and seen.last.state != "dead":
                    reading = seen.view.read()
                    phase, phase_s = reading.phase, reading.phase_s
                seen.last = Observation(state="dead", phase=phase, phase_s=phase_s)
            else:
                seen.last = self._judge(info, seen, state, time.monotonic())
            return seen.last

    def _judge(self, info: RankInfo, seen: _Suspicion, state: str, now: float) -> Observation:
        if now - seen.looked > _LOOK_GAP_S:
            seen.stopped, seen.beaten = None, now
        seen.looked = now
        phase, phase_s = self._read(info, seen, now)
        if state != "T":
            seen.stopped = None
        elif seen.stopped is None:
            seen.stopped = now
        if seen.stopped is not None:
            return Observation(state="stopped", for_s=now - seen.stopped, phase=phase, phase_s=phase_s)
        silent = now - seen.beaten
        if seen.view is not None and silent > self._silence_s:
            return Observation(state="unresponsive", for_s=silent, phase=phase, phase_s=phase_s)
        return Observation(state="alive", phase=phase, phase_s=phase_s)

    def _read(self, info: RankInfo, seen: _Suspicion, now: float) -> tuple[str, float]:
        if seen.view is None and info.pulse >= 0:
            try:
                seen.view = PulseView(info.pid, info.pulse)
            except OSError:
                return "", 0.0  # the process is just ending, or its files are not ours to open
        if seen.view is None:
            return "", 0.0
        reading = seen.view.read()
        if reading.beat != seen.beat:
            seen.beat, seen.beaten = reading.beat, now
        return reading.phase, reading.phase_s

    def cancel(self, info: RankInfo, call: int) -> None:
        """Ask a worker to stop a call."""
        self.look(info)
        with self._lock:
            view = self._seen[info.pid, info.started].view
            if view is not None:
                view.cancel(call)

    def forget(self, info: RankInfo) -> None:
        """Let go of a worker that is closed."""
        with self._lock:
            seen = self._seen.pop((info.pid, info.started), None)
            if seen is not None and seen.view is not None:
                seen.view.close()


def words_of(info: RankInfo, *, stacks: bool) -> Words:
    """Return what a process of this machine says of itself; ``stacks`` asks it for those, which takes 0.3 s."""
    alive = process.is_alive(info.pid, info.started)
    return Words(
        kernel=process.describe(info.pid) if alive else "",
        stderr=process.tail(info.stderr_path, _STDERR_LINES) if info.stderr_path else "",
        stacks=_stacks(info) if stacks and alive else "",
    )


def _stacks(info: RankInfo) -> str:
    """Ask for the Python stacks, which the worker writes to its stderr even while a call into C holds Python's lock."""
    from plugrl.runtime.host import STACKS_SIGNAL

    path = info.stderr_path
    if not path or not os.path.exists(path) or process.state(info.pid, info.started) == "T":
        return ""
    try:
        before = os.path.getsize(path)
        os.kill(info.pid, STACKS_SIGNAL)
        time.sleep(_STACKS_WAIT_S)
        size = os.path.getsize(path) - before
    except OSError:
        return ""  # it ended meanwhile
    return process.tail(path, _STACK_LINES, size) if size > 0 else ""


class NodeWatcher:
    """The actor that looks at the workers of its node for the driver."""

    def __init__(self, period_s: float) -> None:
        self._observer = Observer(period_s)

    def look(self, infos: Sequence[RankInfo]) -> dict[Subject, Observation]:
        """Return how the processes are."""
        return {(info.pid, info.started): self._observer.look(info) for info in infos}

    def words_of(self, info: RankInfo, stacks: bool) -> Words:
        """See :func:`words_of`."""
        return words_of(info, stacks=stacks)

    def cancel(self, info: RankInfo, call: int) -> None:
        """See :meth:`Observer.cancel`."""
        self._observer.cancel(info, call)

    def forget(self, infos: Sequence[RankInfo]) -> None:
        """Let go of workers that are closed."""
        for info in infos:
            self._observer.forget(info)

    def kill(self, info: RankInfo) -> None:
        """Kill a worker that Ray cannot end, since it is stopped."""
        process.kill(info.pid, info.started)
