"""The items of generator methods, as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ray

from plugrl.errors import WorkerTimeout
from plugrl.runtime.calls import Request
from plugrl.runtime.cancellation import raise_if_cancelled
from plugrl.runtime.deadline import Deadline, Timeout
from plugrl.runtime.failure import Failure
from plugrl.runtime.liveness import cause_of, death, raise_if_lost

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup

_TICK_S = 0.25


class Stream:
    """Iterates once over ``(rank, item)``: the items of each rank in their order, ranks as they come.

    Leaving the iteration early (:meth:`close`, or the end of the last reference) asks the workers to stop.
    """

    def __init__(self, group: WorkerGroup, request: Request, ranks: Sequence[int], timeout: Timeout) -> None:
        self._group = group
        self._request = request
        self._timeout = timeout
        with group.lock:
            self._open: dict[Any, int] = {
                group.actors[rank].stream.options(num_returns="streaming").remote(
                    request.method, request.common, request.own.get(rank), request.number
                ): rank
                for rank in ranks
            }
        self._items = self._iterate()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self._items

    def __next__(self) -> tuple[int, Any]:
        return next(self._items)

    def close(self) -> None:
        """Ask the workers that still give items to stop; may be repeated."""
        self._items.close()
        self._leave()

    def _iterate(self) -> Any:
        try:
            while self._open:
                yield from self._ready_items()
        finally:
            if self._open:
                self._leave()

    def _ready_items(self) -> Iterator[tuple[int, Any]]:
        session = self._group.session
        deadline = Deadline(self._timeout, session.config.step_timeout_s)
        while True:
            raise_if_cancelled()
            ready, _ = ray.wait(list(self._open), num_returns=1, timeout=deadline.left(_TICK_S))
            if ready:
                break
            raise_if_lost([group for group in session.open_groups() if group.on_error == "raise"], session.watch)
            if deadline.is_over:
                raise self._late(deadline.limit or 0.0)
        rank = self._open[ready[0]]
        try:
            item = ray.get(next(ready[0]))
        except StopIteration:
            del self._open[ready[0]]
            return
        except ray.exceptions.RayActorError as error:
            self._group.mark_lost(rank)
            raise death(self._group, rank, self._group.known_processes().get(rank), cause_of(error)) from error
        if isinstance(item, Failure):
            del self._open[ready[0]]
            raise item.error()
        yield rank, item

    def _leave(self) -> None:
        processes = self._group.known_processes()
        for rank in self._open.values():
            if rank in processes:
                self._group.session.watch.cancel(processes[rank], self._request.number)
        self._open = {}

    def _late(self, limit: float) -> WorkerTimeout:
        ranks = sorted(self._open.values())
        text = f"No item after {limit:g} s from worker group {self._group.name!r} rank {', '.join(map(str, ranks))} in "
        return WorkerTimeout(f"{text}{self._request.method}().", group=self._group.name, rank=ranks[0])
