"""Waiting for worker groups: results in rank order, the first failure at once, and no wait without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import ray

from plugrl.errors import PlugRLError
from plugrl.runtime.calls import Call, total
from plugrl.runtime.cancellation import raise_if_cancelled
from plugrl.runtime.deadline import DEFAULT, Deadline, Timeout
from plugrl.runtime.verdict import step, timeout_of

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup

T = TypeVar("T")
U = TypeVar("U")

_TICK_S = 0.25
_STOP_TICK_S = 0.02
_ASYNC_TICKS_S = (0.002, 0.02)
"""First and longest pause of an asynchronous wait between two looks."""


class Handle(Generic[T]):
    """The answers to one call of a worker group, some still to come.

    ``wait`` and ``await`` may be repeated: they then give the same results or the same error; after a WorkerTimeout
    they wait on. Of a group with ``on_error="return"`` the results hold errors in the places of ranks that failed.
    """

    def __init__(self, call: Call, functions: tuple[Callable[[Any], Any], ...] = ()):
        self._call = call
        self._functions = functions
        self._value: tuple[T] | None = None

    @property
    def group(self) -> WorkerGroup:
        """The group that was called."""
        return self._call.group

    @property
    def method(self) -> str:
        """The method that was called."""
        return self._call.method

    @property
    def default_timeout(self) -> float:
        """Seconds that a wait takes at most when it says nothing."""
        return self._call.default_timeout

    def wait(self, timeout: Timeout = DEFAULT) -> T:
        """Return the results by rank (in the order of the ranks that were asked).

        Args:
            timeout: seconds; the session's ``step_timeout_s`` when omitted, None for ever, 0 not at all.

        Raises:
            WorkerError: a rank raised; a UserError keeps its type.
            WorkerDied, WorkerFrozen: a process of any open group of the session is gone or frozen, whatever the other
                ranks do; groups with another ``on_error`` than ``"raise"`` concern their own handles alone.
            WorkerTimeout: the time is over; names the ranks that did not answer and shows where they stand.
            CallCancelled: :meth:`cancel` was called.
        """
        value: T = wait_all([self], timeout)[0]
        return value

    async def async_wait(self, timeout: Timeout = DEFAULT) -> T:
        """As :meth:`wait`, without blocking the event loop."""
        value: T = (await async_wait_all([self], timeout))[0]
        return value

    def __await__(self) -> Generator[Any, None, T]:
        return self.async_wait().__await__()

    def done(self) -> bool:
        """Whether every rank has answered or one has failed; never blocks."""
        self._call.take(0)
        return not self._call.pending or self._call.has_failed

    def exception(self) -> Exception | None:
        """Return the error of the first rank that failed, None when there is none so far; never blocks."""
        self._call.take(0)
        if self._call.error is not None:
            return self._call.error
        failures = sorted(self._call.failures.values(), key=lambda item: (item.is_consequence, item.at))
        return next(iter(self._call.errors.values()), None) or (failures[0].error() if failures else None)

    def cancel(self) -> bool:
        """Ask all ranks to stop, and return at once; False when the call has ended already.

        A wait then raises CallCancelled as soon as the ranks have stopped, at the latest after
        ``cluster.liveness_timeout_s``. Python code is interrupted within ``cluster.heartbeat_s``; a long call into C
        is not, and the error then says which ranks did not stop. Calls that are still queued are not begun.
        """
        return self._call.cancel()

    def then(self, function: Callable[[T], U]) -> Handle[U]:
        """Return a handle of the same call; its ``wait`` gives ``function(results)``, called once, by whoever waits."""
        return Handle(self._call, (*self._functions, function))

    def consume_duration(self, reduction: str = "max") -> float:
        """Return the seconds that the method took in the workers: ``max``, ``min`` or ``mean`` over the ranks.

        Only ranks that have answered count; 0 when none has.
        """
        self._call.take(0)
        seconds = [answer.seconds for answer in self._call.answers.values()]
        return total(seconds, reduction) if seconds else 0.0

    def consume_durations(self, reduction: str = "max") -> dict[str, float]:
        """Return the seconds of each tag of :meth:`plugrl.runtime.Worker.worker_timer`, reduced as above."""
        self._call.take(0)
        answers = list(self._call.answers.values())
        tags = dict.fromkeys(tag for answer in answers for tag in answer.timers)
        return {
            tag: total([answer.timers[tag] for answer in answers if tag in answer.timers], reduction) for tag in tags
        }

    @property
    def pending_ranks(self) -> list[int]:
        """Ranks that have not answered, as far as was looked."""
        return self._call.pending_ranks

    def results(self) -> dict[int, Any]:
        """Return what has arrived so far, by rank; also after a failure, for the ranks that did not fail."""
        return {rank: answer.value for rank, answer in self._call.answers.items()}

    def _finish(self) -> T:
        if self._value is None:
            value: Any = self._call.outcomes()
            for function in self._functions:
                value = function(value)
            self._value = (value,)
        return self._value[0]


def wait_all(handles: Sequence[Handle[Any]], timeout: Timeout = DEFAULT) -> list[Any]:
    """Wait for several calls at once and return their results, call by call; the first failure of any of them raises.

    Use it for calls that depend on each other, such as the two ends of a transfer. The error types are those of
    :meth:`Handle.wait`; ``timeout`` is for all of them together.
    """
    return _wait(handles, timeout, any_rank=False)


def _wait(handles: Sequence[Handle[Any]], timeout: Timeout, *, any_rank: bool) -> list[Any]:
    if not handles:
        return []
    calls = [handle._call for handle in handles]
    deadline = Deadline(timeout, max(call.default_timeout for call in calls))
    while not step(calls, any_rank=any_rank):
        raise_if_cancelled()
        if deadline.is_over:
            raise timeout_of(calls, deadline.limit or 0.0)
        refs = [ref for call in calls for ref in list(call.pending)]
        if refs:
            ray.wait(refs, num_returns=1, timeout=deadline.left(_TICK_S))
    return [handle._finish() for handle in handles]


def stop_all(handles: Sequence[Handle[Any]], timeout: float) -> None:
    """Cancel calls that depend on each other after one has failed, and wait until their workers are free again.

    ``timeout`` in seconds; ranks that are lost, and errors, are of no account.
    """
    calls = [handle._call for handle in handles if handle.cancel()]
    deadline = Deadline(timeout, None)
    while not deadline.is_over and any(set(call.pending_ranks) - call.group.lost_ranks.keys() for call in calls):
        for call in calls:
            call.take(deadline.left(_STOP_TICK_S))


def wait_together(handles: Sequence[Handle[Any]], timeout: Timeout, *, stop_s: float = 2.0) -> list[Any]:
    """As :func:`wait_all` for what is whole or nothing, such as the ends of an exchange or a collective call.

    The first rank that fails ends it, also in groups with ``on_error="return"``: the others may wait for it, and it
    never comes. They are stopped, for up to ``stop_s`` seconds; who does not stop belongs to a broken group.
    """
    try:
        return _wait(handles, timeout, any_rank=True)
    except PlugRLError:
        stop_all(handles, stop_s)
        for handle in handles:
            if handle.pending_ranks:
                handle.group.mark_broken()
        raise


async def async_wait_all(handles: Sequence[Handle[Any]], timeout: Timeout = DEFAULT) -> list[Any]:
    """As :func:`wait_all`, without blocking the event loop."""
    if not handles:
        return []
    calls = [handle._call for handle in handles]
    deadline = Deadline(timeout, max(call.default_timeout for call in calls))
    pause, longest = _ASYNC_TICKS_S
    looked = Deadline(0, 0)
    while True:
        raise_if_cancelled()
        for call in calls:
            call.take(0)
        over = deadline.is_over
        ended = not any(call.pending for call in calls)
        if over or ended or looked.is_over or any(call.has_failed for call in calls):
            # It may take seconds to tell a cause from its consequences.
            if await asyncio.to_thread(step, calls):
                return [handle._finish() for handle in handles]
            if over:
                raise await asyncio.to_thread(timeout_of, calls, deadline.limit or 0.0)
            looked = Deadline(_TICK_S, None)
        await asyncio.sleep(deadline.left(pause))
        pause = min(longest, 2 * pause)
