"""Which portion may run next: the rules of the flow, without a clock, threads or workers.

A portion may begin when what it needs of its inputs is done, when it is first in line at all of its devices, and when
all stages of earlier phases are done. The line at a device is in the order of the flow: by phase, by the round of a
loop, by the last item that a portion reaches to, then by the order of the stages. So stages that share devices take
turns, portion by portion, and there is always a portion that can go on: the first one that is not done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from plugrl.errors import PlugRLError
from plugrl.runtime.flow.stages import DRIVER, Item, Stage


class Schedule:
    """The portions of a flow over ``total`` items, handed out by :meth:`take` and reported by :meth:`finish`.

    ``max_ahead``: portions that a stage may be ahead of the portion that a stage of its phase needs next of it. Not for
    several threads at once: who runs a flow holds a lock.
    """

    def __init__(self, stages: Sequence[Stage], total: int, max_ahead: int | None = None) -> None:
        _check(stages)
        self.total = total
        self._max_ahead = max_ahead
        self._portions = {stage.name: _cut(stage, total) for stage in stages}
        self._inputs: dict[Item, list[Item]] = {}
        self._dependents: dict[Item, list[Item]] = {}
        self._reach: dict[Item, int] = {}
        for stage in stages:
            for item in self._portions[stage.name]:
                self._connect(item)
        self._missing = {item: len(inputs) for item, inputs in self._inputs.items()}
        position = {stage.name: index for index, stage in enumerate(stages)}
        order = sorted(
            self._inputs,
            key=lambda item: (item.stage.phase, item.stage.turn, self._reach[item], position[item.stage.name]),
        )
        self._waiting: dict[str, list[Item]] = {}
        self._lines: dict[int, deque[Item]] = {}
        for item in order:
            self._waiting.setdefault(item.stage.component, []).append(item)
            for device in item.stage.devices:
                self._lines.setdefault(device, deque()).append(item)
        self._left_in_phase: dict[int, int] = {}
        for item in order:
            if item.stage.devices:
                self._left_in_phase[item.stage.phase] = self._left_in_phase.get(item.stage.phase, 0) + 1
        self._consumers = {
            stage.name: [other.name for other in stages if stage.name in other.after and other.phase == stage.phase]
            for stage in stages
        }
        self._done_of: dict[str, int] = dict.fromkeys(self._portions, 0)
        self._running: set[Item] = set()
        self._left = len(order)

    # ----------------------------------------------------------------- use
    @property
    def components(self) -> list[str]:
        """The components that have portions, each of which runs one at a time."""
        return list(self._waiting)

    @property
    def done(self) -> bool:
        """Whether every portion is done."""
        return self._left == 0

    @property
    def running(self) -> list[Item]:
        """Portions that were taken and are not done."""
        return list(self._running)

    def has_more(self, component: str) -> bool:
        """Whether portions of the component are still to be taken."""
        return bool(self._waiting.get(component))

    def take(self, component: str) -> Item | None:
        """Return a portion of the component that may begin now, None when there is none; it then counts as running."""
        if any(item.stage.component == component for item in self._running):
            return None
        waiting = self._waiting.get(component, [])
        # The driver holds no device, so nothing is gained by keeping its stages in line.
        candidates = waiting if component == DRIVER else waiting[:1]
        for item in candidates:
            if self._may_begin(item):
                waiting.remove(item)
                self._running.add(item)
                return item
        return None

    def finish(self, item: Item) -> None:
        """Note that a portion is done."""
        self._running.remove(item)
        self._left -= 1
        self._done_of[item.stage.name] += 1
        for device in item.stage.devices:
            self._lines[device].popleft()
        if item.stage.devices:
            self._left_in_phase[item.stage.phase] -= 1
        for dependent in self._dependents.get(item, ()):
            self._missing[dependent] -= 1

    # ----------------------------------------------------------------- rules
    def _connect(self, item: Item) -> None:
        inputs = [
            other for name in item.stage.after for other in self._portions[name]
            if other.start < item.stop and item.start < other.stop
        ]  # fmt: skip
        self._inputs[item] = inputs
        # What an earlier phase or round gave stands before this item in any case.
        place = (item.stage.phase, item.stage.turn)
        beside = [other for other in inputs if (other.stage.phase, other.stage.turn) == place]
        self._reach[item] = max([item.stop, *(self._reach[other] for other in beside)])
        for other in inputs:
            self._dependents.setdefault(other, []).append(item)

    def _may_begin(self, item: Item) -> bool:
        if self._missing[item]:
            return False
        if not item.stage.devices:
            return True
        if any(left and phase < item.stage.phase for phase, left in self._left_in_phase.items()):
            return False
        if any(self._lines[device][0] is not item for device in item.stage.devices):
            return False
        return not self._is_too_far_ahead(item)

    def _is_too_far_ahead(self, item: Item) -> bool:
        if self._max_ahead is None:
            return False
        for name in self._consumers[item.stage.name]:
            portions, done = self._portions[name], self._done_of[name]
            if done < len(portions):
                needed = self._reach[portions[done]]
                if item.start >= needed + self._max_ahead * item.stage.size:
                    return True
        return False


def _cut(stage: Stage, total: int) -> list[Item]:
    starts = range(0, total, stage.size)
    return [Item(stage, index, start, min(start + stage.size, total)) for index, start in enumerate(starts)]


def _check(stages: Sequence[Stage]) -> None:
    seen: dict[str, Stage] = {}
    for stage in stages:
        if stage.name in seen:
            raise PlugRLError(f"Two stages of the flow are called {stage.name!r}.")
        for name in stage.after:
            if name not in seen:
                raise PlugRLError(f"Stage {stage.name!r} comes after {name!r}, which is not declared before it.")
            if seen[name].phase > stage.phase:
                raise PlugRLError(f"Stage {stage.name!r} comes after {name!r}, which runs in a later phase.")
            if seen[name].phase == stage.phase and seen[name].turn > stage.turn:
                raise PlugRLError(f"Stage {stage.name!r} comes after {name!r}, which is of a later round.")
        seen[stage.name] = stage
