"""Waiting for worker groups: results in rank order, the first failure at once, and no wait without an end."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray

from plugrl.errors import WorkerTimeout
from plugrl.runtime import process
from plugrl.runtime.cancellation import raise_if_cancelled
from plugrl.runtime.failure import Failure
from plugrl.runtime.host import STACKS_SIGNAL
from plugrl.runtime.liveness import cause_of, death

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup

_TICK_S = 0.25
_SETTLE_S = 0.3
"""After a failure: how long to look for the death or the earlier failure that caused it."""
_SETTLE_DEATH_S = 3.0
_STACKS_WAIT_S = 0.3
_STACK_LINES = 40


class Handle:
    """The answers to one call of a worker group, some still to come.

    ``wait`` may be called again: it then gives the same results or the same error; after a WorkerTimeout it waits on.
    """

    def __init__(self, group: WorkerGroup, method: str, refs: dict[int, Any], default_timeout: float):
        self.group = group
        self.method = method
        self.default_timeout = default_timeout
        self.started = time.monotonic()
        self._pending: dict[Any, int] = {ref: rank for rank, ref in refs.items()}
        self._ranks = tuple(refs)
        self._results: dict[int, Any] = {}
        self._failures: dict[int, Failure] = {}
        self._error: Exception | None = None

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Return the results by rank (in the order of the ranks that were asked).

        Args:
            timeout: seconds; the session's ``step_timeout_s`` when omitted.

        Raises:
            WorkerError: a rank raised; a UserError keeps its type.
            WorkerDied: a process of any open group of the session is gone, whatever the other ranks do.
            WorkerTimeout: the time is over; names the ranks that did not answer and shows where they stand.
        """
        return wait_all([self], timeout)[0]

    def done(self) -> bool:
        """Whether every rank has answered or one has failed; never blocks."""
        self.take(0)
        return not self._pending or bool(self._failures) or self._error is not None

    @property
    def pending_ranks(self) -> list[int]:
        """Ranks that have not answered, as far as was looked."""
        return sorted(self._pending.values())

    def results(self) -> dict[int, Any]:
        """Return what has arrived so far, by rank; also after a failure, for the ranks that did not fail."""
        return dict(self._results)

    def take(self, timeout: float) -> None:
        """Collect what is there after at most ``timeout`` seconds; keeps the error of an actor that died."""
        if not self._pending:
            return
        ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=timeout)
        if ready and len(self._pending) > 1:
            ready, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        for ref in ready:
            self._take_one(ref, self._pending.pop(ref))

    def _take_one(self, ref: Any, rank: int) -> None:
        try:
            value = ray.get(ref, timeout=self.default_timeout)
        except ray.exceptions.RayActorError as error:
            info = self.group.known_processes().get(rank)
            if info is None or not self.group.session.is_running(info):
                self._error = self._error or death(self.group, rank, info, cause_of(error))
                return
            # It lives, so the one that died is a rank whose answer this call was waiting for.
            self._failures[rank] = Failure.capture(error, info, self.method)
        except ray.exceptions.RayError as error:
            # The call never reached the method: an argument could not be rebuilt, or the runtime environment is broken.
            self._failures[rank] = Failure.capture(error, self.group.describe_rank(rank), self.method)
            return
        if isinstance(value, Failure):
            self._failures[rank] = value
        else:
            self._results[rank] = value


def wait_all(handles: Sequence[Handle], timeout: float | None = None) -> list[list[Any]]:
    """Wait for several calls at once and return their results, call by call; the first failure of any of them raises.

    Use it for calls that depend on each other, such as the two ends of a transfer. The error types are those of
    :meth:`Handle.wait`; ``timeout`` is for all of them together.
    """
    if not handles:
        return []
    limit = max(handle.default_timeout for handle in handles) if timeout is None else timeout
    deadline = time.monotonic() + limit
    while True:
        for handle in handles:
            handle.take(0)
        _raise_failure(handles)
        waiting = [handle for handle in handles if handle._pending]
        if not waiting:
            return [[handle._results[rank] for rank in handle._ranks] for handle in handles]
        raise_if_cancelled()
        _raise_death(handles)
        left = deadline - time.monotonic()
        if left <= 0:
            raise _timeout(waiting, limit)
        _wait_any(waiting, min(_TICK_S, left))


def _wait_any(handles: Sequence[Handle], timeout: float) -> None:
    refs = [ref for handle in handles for ref in handle._pending]
    ray.wait(refs, num_returns=1, timeout=timeout)


def _raise_death(handles: Sequence[Handle]) -> None:
    session = handles[0].group.session
    found = session.watch.find_dead(session.open_groups())
    if found is None:
        return
    group, info = found
    error = death(group, info.rank, info)
    group.mark_broken()
    for handle in handles:
        # Calls of other groups may still end well; once the dead group is closed they can be waited for again.
        if handle.group is group:
            handle._error = error
    raise error


def _raise_failure(handles: Sequence[Handle]) -> None:
    if not any(handle._failures or handle._error for handle in handles):
        return
    _settle(handles)
    for handle in handles:
        if handle._error is not None:
            handle.group.mark_broken()
            raise handle._error
    failures = [(failure.at, handle, failure) for handle in handles for failure in handle._failures.values()]
    _, first, failure = min(failures, key=lambda item: item[0])
    error = failure.error()
    for handle in handles:
        if handle._pending:
            handle.group.mark_broken()
    first._error = error
    raise error


def _settle(handles: Sequence[Handle]) -> None:
    """Give the cause of a failure time to show: a peer whose death broke a collective, a rank that failed before."""
    if any(handle._error for handle in handles):
        return
    died = any(failure.cause_type.startswith("Actor") for handle in handles for failure in handle._failures.values())
    end = time.monotonic() + (_SETTLE_DEATH_S if died else _SETTLE_S)
    while time.monotonic() < end:
        _raise_death(handles)
        waiting = [handle for handle in handles if handle._pending]
        if not waiting and not died:
            return
        for handle in waiting:
            handle.take(0)
        if any(handle._error for handle in handles):
            return
        time.sleep(0.02)


def _timeout(waiting: Sequence[Handle], limit: float) -> WorkerTimeout:
    parts = []
    for handle in waiting:
        ranks = ", ".join(map(str, handle.pending_ranks))
        parts.append(f"worker group {handle.group.name!r} rank {ranks} in {handle.method}()")
        handle.group.mark_broken()
    first = waiting[0]
    rank = first.pending_ranks[0]
    info = first.group.known_processes().get(rank)
    text = f"No answer after {limit:g} s from {'; '.join(parts)}."
    stacks = _stacks(first, rank)
    unplaced = [rank for handle in waiting for rank in handle.group.unplaced_ranks()]
    if unplaced and first.group.session.platform.ray_resource_name():
        text += f"\nRay has not started all of their processes.\n{first.group.session.shortage(len(unplaced))}"
    if stacks:
        text += f"\nWhere rank {rank} of {first.group.name!r} stands:\n{stacks}"
    return WorkerTimeout(
        text,
        group=first.group.name,
        rank=rank,
        node=info.node_ip if info else "",
        pid=info.pid if info else 0,
        remote_traceback=stacks,
    )


def _stacks(handle: Handle, rank: int) -> str:
    """Ask a process of this machine for its Python stacks and return them, empty when it cannot tell."""
    info = handle.group.known_processes().get(rank)
    session = handle.group.session
    if info is None or not info.stderr_path or info.node_id != session.local_node_id:
        return ""
    if not process.is_alive(info.pid, info.started):
        return ""
    before = os.path.getsize(info.stderr_path) if os.path.exists(info.stderr_path) else 0
    os.kill(info.pid, STACKS_SIGNAL)
    time.sleep(_STACKS_WAIT_S)
    size = os.path.getsize(info.stderr_path) - before if os.path.exists(info.stderr_path) else 0
    return process.tail(info.stderr_path, _STACK_LINES, size) if size > 0 else ""
