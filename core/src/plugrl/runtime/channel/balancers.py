"""Which consumer gets which item. A balancer sees what waits in a queue and who asks, and names what one may take.

Registered under the kind ``balancer``; plugins add their own through the manifest field ``balancers``.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.errors import ConfigError, PluginError, UserError
from plugrl.registry import Registry

_AFFINITIES = 65_536


@dataclass
class Consumer:
    """Somebody who takes items. ``given`` and ``done`` are weights: handed out, and reported as worked off."""

    name: str
    number: int
    given: float = 0.0
    done: float = 0.0

    @property
    def load(self) -> float:
        """Weight that is handed out and not reported as done."""
        return self.given - self.done


@dataclass(frozen=True)
class View:
    """An item as balancers see it: ``number`` grows with every put of the channel."""

    number: int
    weight: float
    affinity: Hashable


class Balancer(ABC):
    """One per channel. Its methods run in the channel's server and must not wait.

    ``in_order`` says that items leave in the order they came and that who asked first is served first.
    """

    in_order: ClassVar[bool] = False

    @abstractmethod
    def choose(
        self, key: Hashable, items: Sequence[Any], consumer: Consumer, waiting: Sequence[Consumer], closed: bool
    ) -> Iterable[int]:
        """Return the indices of the items that ``consumer`` may take now, the best first.

        Args:
            items: what waits under ``key``, in order; each has ``number``, ``weight`` and ``affinity``.
            waiting: all consumers that ask for this key, in the order they asked, each once.
            closed: no more items will come.
        """

    def lost(self, consumer: Consumer) -> None:  # noqa: B027
        """A consumer is gone; what it was meant to get goes to others."""

    def taken(self, number: int) -> None:  # noqa: B027
        """The item with this number is worked off, or will not come back."""


class Fifo(Balancer):
    """First come, first served."""

    in_order = True

    def choose(
        self, key: Hashable, items: Sequence[Any], consumer: Consumer, waiting: Sequence[Consumer], closed: bool
    ) -> Iterable[int]:
        """Every item, in order."""
        return range(len(items))


class LeastLoaded(Balancer):
    """Items in order; of those who ask, the one with the least weight that is not reported as done is served first."""

    def choose(
        self, key: Hashable, items: Sequence[Any], consumer: Consumer, waiting: Sequence[Consumer], closed: bool
    ) -> Iterable[int]:
        """Every item, in order, to the one with the least load alone."""
        least = min(waiting, key=lambda other: (other.load, other.number))
        return range(len(items)) if consumer is least else ()


class Weighted(Balancer):
    """The heaviest item first, to the consumer with the least load: long work must not begin last."""

    def choose(
        self, key: Hashable, items: Sequence[Any], consumer: Consumer, waiting: Sequence[Consumer], closed: bool
    ) -> Iterable[int]:
        """Every item, the heaviest first, to the one with the least load alone."""
        least = min(waiting, key=lambda other: (other.load, other.number))
        if consumer is not least:
            return ()
        return _lazily_sorted(items)


class Sticky(Balancer):
    """Items of one affinity go to one consumer: the one that got the first of them, while it lives."""

    def __init__(self) -> None:
        self._owner: OrderedDict[Hashable, Consumer] = OrderedDict()

    def choose(
        self, key: Hashable, items: Sequence[Any], consumer: Consumer, waiting: Sequence[Consumer], closed: bool
    ) -> Iterable[int]:
        """Items of no affinity, of this consumer's, and of those that nobody has yet."""
        for index, item in enumerate(items):
            if item.affinity is None:
                yield index
                continue
            owner = self._owner.setdefault(item.affinity, consumer)
            self._owner.move_to_end(item.affinity)
            if owner is consumer:
                yield index
        while len(self._owner) > _AFFINITIES:
            self._owner.popitem(last=False)

    def lost(self, consumer: Consumer) -> None:
        """Let others have what was meant for it."""
        for affinity in [name for name, owner in self._owner.items() if owner is consumer]:
            del self._owner[affinity]


class KarmarkarKarp(Balancer):
    """Parts of nearly equal weight: every ``window`` items are divided among ``consumers`` by Karmarkar and Karp.

    An item waits until its window is full, or the channel closes. The parts go to the consumers in the order in which
    these asked first; the part of a consumer that is gone can be taken by anybody.
    """

    def __init__(self, consumers: int, window: int) -> None:
        if consumers < 1 or window < 1:
            raise ConfigError("balancer options: consumers and window must be at least 1.")
        self._consumers = consumers
        self._window = window
        self._part: dict[int, int] = {}
        self._seat: dict[str, int] = {}
        self._free: set[int] = set()

    def choose(
        self, key: Hashable, items: Sequence[Any], consumer: Consumer, waiting: Sequence[Consumer], closed: bool
    ) -> Iterable[int]:
        """The items of this consumer's part, and of the parts that are anybody's."""
        self._divide(items, closed)
        seat = self._seat.get(consumer.name)
        if seat is None and len(self._seat) < self._consumers:
            seat = self._seat[consumer.name] = min(set(range(self._consumers)) - set(self._seat.values()))
            self._free.discard(seat)
        mine = {seat} | self._free
        return [index for index, item in enumerate(items) if self._part.get(item.number, -1) in mine]

    def lost(self, consumer: Consumer) -> None:
        """Let others have what was meant for it."""
        seat = self._seat.pop(consumer.name, None)
        if seat is not None:
            self._free.add(seat)

    def taken(self, number: int) -> None:
        """Forget whose part it was."""
        self._part.pop(number, None)

    def _divide(self, items: Sequence[Any], closed: bool) -> None:
        fresh = [item for item in items if item.number not in self._part]
        while len(fresh) >= self._window or (closed and fresh):
            batch, fresh = fresh[: self._window], fresh[self._window :]
            for part, members in enumerate(partition([item.weight for item in batch], self._consumers)):
                self._part.update((batch[index].number, part) for index in members)


def partition(weights: Sequence[float], parts: int) -> list[list[int]]:
    """Divide weights into ``parts`` sets of nearly equal sum by the largest differencing method; return their indices.

    Karmarkar and Karp (1982): of all partial divisions the two with the largest spread are joined, the heaviest set of
    one with the lightest of the other.
    """
    if parts < 1:
        raise UserError(f"parts must be at least 1, not {parts}.")
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for index, weight in enumerate(weights):
        sets: list[tuple[float, list[int]]] = [(0.0, []) for _ in range(parts - 1)] + [(float(weight), [index])]
        heap.append((-float(weight), index, sets))
    heapq.heapify(heap)
    order = len(weights)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        joined = [
            (light[0] + heavy[0], light[1] + heavy[1]) for light, heavy in zip(first, reversed(second), strict=True)
        ]
        joined.sort(key=lambda row: row[0])
        order += 1
        heapq.heappush(heap, (joined[0][0] - joined[-1][0], order, joined))
    return [sorted(members) for _, members in heap[0][2]] if heap else [[] for _ in range(parts)]


def _lazily_sorted(items: Sequence[Any]) -> Iterable[int]:
    """Yield indices by falling weight; most callers want the first alone."""
    if not items:
        return
    heap = [(-item.weight, index) for index, item in enumerate(items)]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[1]


def check_balancer(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` is a :class:`Balancer` class."""
    if not isinstance(value, type) or not issubclass(value, Balancer):
        raise PluginError(f'Balancer "{key}" must be a subclass of Balancer, got {value!r}.')


BALANCERS: Registry[type[Balancer]] = Registry("balancer", check=check_balancer)

for _name, _class, _summary in (
    ("fifo", Fifo, "first come, first served"),
    ("least_loaded", LeastLoaded, "in order, to the consumer with the least unfinished weight"),
    ("weighted", Weighted, "heaviest first, to the consumer with the least unfinished weight"),
    ("sticky", Sticky, "all items of one affinity to one consumer"),
    ("kk", KarmarkarKarp, "windows divided into parts of equal weight (options: consumers, window)"),
):
    BALANCERS.register(_name, _class, summary=_summary)


def make_balancer(name: str, options: dict[str, Any]) -> Balancer:
    """Return a new balancer. Raises NotRegistered for an unknown name, ConfigError for options it does not take."""
    factory = BALANCERS.get(name)
    try:
        return factory(**options)
    except TypeError as error:
        raise ConfigError(f'balancer "{name}": {error}') from error
