"""Runs a flow: a thread for each component, all of them waiting for the next portion of theirs that may begin.

The driver's own stages run in the thread that calls :func:`run_flow`, because deadlines of a user's code work by
signals, which reach the main thread alone.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from plugrl.errors import CallCancelled, RuntimeTimeout
from plugrl.runtime import trace
from plugrl.runtime.cancellation import Cancellation
from plugrl.runtime.flow.measure import FlowRecord, Span
from plugrl.runtime.flow.schedule import Schedule
from plugrl.runtime.flow.stages import DRIVER, Item, Stage

_TICK_S = 1.0
"""The longest sleep of a thread that waits: changes wake it, so this only bounds how late a deadline is seen."""
_JOIN_S = 2.0

Using = Callable[[Item], AbstractContextManager[object]]
"""What holds the devices of a portion while it runs."""


def run_flow(
    stages: Sequence[Stage],
    total: int,
    *,
    using: Using | None = None,
    transfers: Mapping[str, Callable[[str], None]] | None = None,
    timeout: float | None = None,
    max_ahead: int | None = None,
) -> FlowRecord:
    """Run all portions and return when each ran, in seconds from the beginning.

    Args:
        stages, total, max_ahead: see :class:`Schedule`.
        using: holds the devices of a portion; by default nothing needs holding.
        transfers: what ``load`` and ``unload`` of a component do.
        timeout: seconds that one portion may take, None for ever.

    Raises:
        RuntimeTimeout: a portion takes longer; names it.
        Exception: the first error of a portion; the others are cancelled, and those still at work are left behind.
    """
    return _Run(Schedule(stages, total, max_ahead), using, transfers or {}, timeout).run()


class _Run:
    def __init__(
        self,
        schedule: Schedule,
        using: Using | None,
        transfers: Mapping[str, Callable[[str], None]],
        timeout: float | None,
    ) -> None:
        self._schedule = schedule
        self._using = using
        self._transfers = transfers
        self._timeout = timeout
        self._changed = threading.Condition()
        self._cancellation = Cancellation()
        self._error: BaseException | None = None
        self._spans: list[Span] = []
        self._since: dict[Item, float] = {}
        self._start = time.perf_counter()

    def run(self) -> FlowRecord:
        components = [name for name in self._schedule.components if name != DRIVER]
        threads = []
        for name in components:
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(self._work, name), name=f"flow-{name}", daemon=True)
            thread.start()
            threads.append(thread)
        try:
            with self._cancellation.scope():
                self._drive()
        except BaseException as error:
            self._fail(error)
        finally:
            self._end(threads)
        if self._error is not None:
            raise self._error
        return FlowRecord(tuple(sorted(self._spans, key=lambda span: span.begin)))

    def _drive(self) -> None:
        """Run the driver's portions, and keep the deadline of all others."""
        while True:
            with self._changed:
                item = None
                while item is None:
                    if self._error is not None or self._schedule.done:
                        return
                    self._check_deadline()
                    item = self._schedule.take(DRIVER)
                    if item is None:
                        self._changed.wait(self._next_look())
                self._since[item] = time.perf_counter()
            self._do(item)

    def _work(self, component: str) -> None:
        try:
            with self._cancellation.scope():
                while (item := self._next(component)) is not None:
                    self._do(item)
        except BaseException as error:  # A thread has nobody above it: the driver raises this.
            self._fail(error)

    def _next(self, component: str) -> Item | None:
        """Wait for a portion of the component; None when there are no more or the flow has failed."""
        with self._changed:
            while self._error is None and self._schedule.has_more(component):
                item = self._schedule.take(component)
                if item is not None:
                    self._since[item] = time.perf_counter()
                    return item
                self._changed.wait(_TICK_S)
        return None

    def _do(self, item: Item) -> None:
        stage = item.stage
        attributes = {"component": stage.component, "after": stage.after, "start": item.start, "stop": item.stop}
        with self._using(item) if self._using and not stage.transfer else nullcontext():
            begin = time.perf_counter() - self._start
            with trace.span(stage.name, flow=True, **attributes):
                if stage.transfer:
                    self._transfers[stage.transfer](stage.component)
                else:
                    stage.run(item)
            end = time.perf_counter() - self._start
        with self._changed:
            self._since.pop(item, None)
            self._spans.append(Span(item, begin, end))
            self._schedule.finish(item)
            self._changed.notify_all()

    def _check_deadline(self) -> None:
        if self._timeout is None:
            return
        now = time.perf_counter()
        for item, since in self._since.items():
            if now - since > self._timeout:
                raise RuntimeTimeout(
                    f"Stage {item.stage.name!r} of {item.stage.component} has worked on items {item.start} to "
                    f"{item.stop - 1} for more than {self._timeout:g} s."
                )

    def _next_look(self) -> float:
        if self._timeout is None or not self._since:
            return _TICK_S
        left = min(self._since.values()) + self._timeout - time.perf_counter()
        return min(_TICK_S, max(left, 0.0) + 0.001)

    def _fail(self, error: BaseException) -> None:
        """Keep the first cause and stop the others; what they raise for that reason is no cause."""
        with self._changed:
            if self._error is None and not (isinstance(error, CallCancelled) and self._cancellation.cancelled):
                self._error = error
            self._cancellation.cancel(f"Another stage of the flow failed: {type(error).__name__}.")
            self._changed.notify_all()

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        deadline = time.monotonic() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
