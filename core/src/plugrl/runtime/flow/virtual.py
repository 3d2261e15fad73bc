"""What a flow takes on a virtual clock: the rules of the schedule with given costs, exact and without waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from plugrl.runtime.flow.measure import FlowRecord, Span
from plugrl.runtime.flow.schedule import Schedule
from plugrl.runtime.flow.stages import Item, Stage


def simulate(
    stages: Sequence[Stage], total: int, cost: Callable[[Item], float], max_ahead: int | None = None
) -> FlowRecord:
    """Return when each portion would run. Whole numbers as costs give whole numbers as times: nothing is rounded."""
    schedule = Schedule(stages, total, max_ahead)
    now: float = 0
    running: list[tuple[float, int, Item]] = []
    spans: list[Span] = []
    while not schedule.done:
        for component in schedule.components:
            item = schedule.take(component)
            if item is not None:
                end = now + cost(item)
                heapq.heappush(running, (end, len(spans), item))
                spans.append(Span(item, now, end))
        assert running, "a flow always has a portion that can go on"
        now, _, item = heapq.heappop(running)
        schedule.finish(item)
        while running and running[0][0] == now:
            schedule.finish(heapq.heappop(running)[2])
    return FlowRecord(tuple(spans))
