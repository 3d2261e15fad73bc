"""The state of one call of a worker group: what has arrived from which rank, and what went wrong."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray

from plugrl.runtime.answer import Answer
from plugrl.runtime.failure import Failure
from plugrl.runtime.liveness import cause_of, death

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup


@dataclass(frozen=True, kw_only=True)
class Request:
    """A call as the ranks get it: ``common`` arguments (or a Ray reference to them) and each rank's ``own``."""

    method: str
    common: Any = ((), {})
    own: Mapping[int, Any] = field(default_factory=dict)
    number: int = field(default_factory=lambda: secrets.randbits(63) | 1)

    def submit(self, actor: Any, rank: int) -> Any:
        """Send the call to a rank's actor and return Ray's reference."""
        return actor.call.remote(self.method, self.common, self.own.get(rank), self.number)


class Call:
    """The answers to one call, some still to come. Several threads may look at it."""

    def __init__(
        self,
        group: WorkerGroup,
        request: Request,
        refs: Mapping[int, Any],
        default_timeout: float,
        is_repeatable: bool = False,
    ) -> None:
        self.group = group
        self.is_repeatable = is_repeatable
        self.request = request
        self.default_timeout = default_timeout
        self.started = time.monotonic()
        self.ranks = tuple(refs)
        self.pending: dict[Any, int] = {ref: rank for rank, ref in refs.items()}
        self.answers: dict[int, Answer] = {}
        self.failures: dict[int, Failure] = {}
        self.errors: dict[int, Exception] = {}
        """By rank, errors that the driver itself found: a death, a lost peer."""
        self.error: Exception | None = None
        """The outcome of the whole call once it failed; every later wait raises it again."""
        self.cancelled_at: float | None = None
        self._lock = group.lock  # one for all calls: a rank that is started anew gets the open ones again

    @property
    def method(self) -> str:
        """The method that was called."""
        return self.request.method

    @property
    def pending_ranks(self) -> list[int]:
        """Ranks that have not answered, as far as was looked."""
        return sorted(self.pending.values())

    @property
    def has_failed(self) -> bool:
        """Whether something went wrong on a rank, as far as was looked."""
        return bool(self.failures or self.errors or self.error)

    def take(self, timeout: float) -> None:
        """Collect what is there after at most ``timeout`` seconds; keeps the error of an actor that died."""
        waiting = list(self.pending)
        if not waiting:
            return
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for ref in ready:
            with self._lock:
                rank = self.pending.get(ref)
                if rank is not None:
                    self._take_one(ref, rank)
                    self.pending.pop(ref, None)

    def _take_one(self, ref: Any, rank: int) -> None:
        try:
            value = ray.get(ref, timeout=self.default_timeout)
        except ray.exceptions.RayActorError as error:
            self._take_death(rank, error)
        except ray.exceptions.RayError as error:
            # The call never reached the method: an argument could not be rebuilt, or the runtime environment is broken.
            self.failures[rank] = Failure.capture(error, self.group.describe_rank(rank), self.method)
        else:
            if isinstance(value, Failure):
                self.failures[rank] = value
            else:
                self.answers[rank] = value if isinstance(value, Answer) else Answer(value=value)

    def _take_death(self, rank: int, error: Exception) -> None:
        info = self.group.known_processes().get(rank)
        if info is not None and self.group.session.is_running(info):
            # It lives, so the one that died is a rank whose answer this call was waiting for.
            self.failures[rank] = Failure.capture(error, info, self.method)
        elif not self.is_repeatable or not self.group.restart_rank(rank):
            self.errors[rank] = death(self.group, rank, info, cause_of(error))

    def submit_again(self, rank: int) -> None:
        """Call a rank that was started anew, if it has not answered before."""
        with self._lock:
            for ref in [ref for ref, pending in self.pending.items() if pending == rank]:
                del self.pending[ref]
                self.pending[self.request.submit(self.group.actors[rank], rank)] = rank

    def give_up(self, rank: int, error: Exception) -> None:
        """Stop waiting for a rank that is gone or blocked on one that is."""
        with self._lock:
            for ref in [ref for ref, pending in self.pending.items() if pending == rank]:
                del self.pending[ref]
            self.errors[rank] = error

    def cancel(self) -> bool:
        """Ask the ranks that have not answered to stop; False when none is left. A call that failed keeps its error."""
        self.take(0)
        if not self.pending:
            return False
        if self.error is None:
            self.cancelled_at = self.cancelled_at or time.monotonic()
        processes = self.group.known_processes()
        for rank in self.pending_ranks:
            if rank in processes:
                self.group.session.watch.cancel(processes[rank], self.request.number)
        return True

    def outcomes(self) -> list[Any]:
        """Return values and errors by rank, in the order of the ranks that were asked; all must have ended."""
        return [self._outcome(rank) for rank in self.ranks]

    def _outcome(self, rank: int) -> Any:
        if rank in self.answers:
            return self.answers[rank].value
        if rank in self.errors:
            return self.errors[rank]
        return self.failures[rank].error()


def total(durations: Sequence[float], reduction: str) -> float:
    """Reduce durations over ranks: ``max``, ``min`` or ``mean``. Raises ValueError for any other word."""
    if reduction == "mean":
        return sum(durations) / len(durations)
    if reduction not in ("max", "min"):
        raise ValueError(f"reduction={reduction!r} is none of max, mean, min.")
    return max(durations) if reduction == "max" else min(durations)
