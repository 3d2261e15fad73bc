"""One key of a channel as pure state: items, who waits to put, who waits to get. Nothing here sends or waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from plugrl.runtime.channel.balancers import Balancer, Consumer

WEIGHT = "weight"
NEXT = "next"
CLOSED = "closed"
FULL = "full"
ENOUGH = "min_items"
TIMEOUT = "timeout"
"""Why a batch is no larger: its weight is reached, the next item is too heavy for it, no item will come any more, the
queue is full and would take none, ``min_items`` are there and that was asked for, or the time is over."""


@dataclass(eq=False)
class Item:
    """Something that was put. ``size`` counts for the bound in bytes; ``content`` is what the server keeps of it."""

    number: int
    weight: float
    affinity: Hashable
    size: int
    content: Any = None


@dataclass(eq=False)
class Putter:
    """An item that waits for room; ``ident`` is who put it."""

    ident: Any
    item: Item


@dataclass(eq=False)
class Getter:
    """Somebody who waits for one item or, with ``max_weight``, for a batch."""

    ident: Any
    consumer: Consumer
    max_weight: float | None = None
    min_items: int = 1
    fill: bool = True


@dataclass(frozen=True)
class Delivery:
    """Items for somebody who waited; ``reason`` says why a batch is no larger."""

    getter: Getter
    items: list[Item]
    reason: str


class KeyQueue:
    """The queue of one key. After every change :meth:`settle` says what follows from it."""

    def __init__(self, key: Hashable, balancer: Balancer, maxsize: int = 0, max_bytes: int = 0) -> None:
        self.key = key
        self.closed = False
        self.in_flight = 0
        """Items that were handed out and not acknowledged: they may come back."""
        self._balancer = balancer
        self._maxsize = maxsize
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._putters: deque[Putter] = deque()
        self._getters: deque[Getter] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def idle(self) -> bool:
        """Whether nothing is lost when this queue is forgotten."""
        return not (self._items or self._putters or self._getters or self.in_flight or self.closed)

    @property
    def items(self) -> list[Item]:
        """What waits, in order."""
        return list(self._items)

    def full(self) -> bool:
        """Whether an item of no size would have to wait."""
        return bool(self._putters) or not self.has_room(0)

    def has_room(self, size: int) -> bool:
        """Whether an item of ``size`` bytes fits. Into an empty queue any one item does."""
        if not self._items:
            return True
        if self._maxsize and len(self._items) >= self._maxsize:
            return False
        return not self._max_bytes or (self._bytes + size <= self._max_bytes and self._bytes < self._max_bytes)

    def put(self, putter: Putter) -> None:
        """Let an item wait for room; :meth:`settle` tells when it has it."""
        self._putters.append(putter)

    def get(self, getter: Getter) -> None:
        """Let somebody wait for items."""
        self._getters.append(getter)

    def insert(self, item: Item) -> None:
        """Take in an item whatever the bounds are."""
        self._items.append(item)
        self._bytes += item.size

    def take_back(self, items: list[Item]) -> None:
        """Put items that were handed out where they were: an older one never stands behind a younger one."""
        for item in reversed(items):
            place = 0
            while place < len(self._items) and self._items[place].number < item.number:
                place += 1
            self._items.insert(place, item)
            self._bytes += item.size

    def withdraw_putter(self, ident: Any) -> Putter | None:
        """Remove an item that still waits for room."""
        return _remove(self._putters, ident)

    def withdraw_getter(self, ident: Any) -> Getter | None:
        """Remove somebody who still waits."""
        return _remove(self._getters, ident)

    def expire(self, ident: Any) -> Delivery | Getter | None:
        """End a wait whose time is over: with what a batch has if that is enough, else with nothing."""
        getter = next((getter for getter in self._getters if getter.ident == ident), None)
        if getter is None:
            return None
        self._getters.remove(getter)
        if getter.max_weight is not None:
            indices, _ = self._prefix(getter)
            if len(indices) >= getter.min_items:
                return self._take(getter, indices, TIMEOUT)
        return getter

    def close(self) -> list[Putter]:
        """Take no more items; return those that still waited for room."""
        self.closed = True
        refused, self._putters = list(self._putters), deque()
        return refused

    def abandon(self) -> list[Getter]:
        """Return all who still wait, who wait no longer."""
        getters, self._getters = list(self._getters), deque()
        return getters

    def drained(self) -> list[Getter]:
        """Return, once, who waits for items that will never come."""
        if not self.closed or self._items or self.in_flight:
            return []
        getters, self._getters = list(self._getters), deque()
        return getters

    def settle(self) -> Iterator[Putter | Delivery]:
        """Yield what is possible now: items that have room, and deliveries."""
        progress = True
        while progress:
            progress = False
            while self._putters and self.has_room(self._putters[0].item.size):
                putter = self._putters.popleft()
                self.insert(putter.item)
                progress = True
                yield putter
            delivery = self._next_delivery()
            if delivery is not None:
                progress = True
                yield delivery

    def _next_delivery(self) -> Delivery | None:
        if not self._items:
            return None
        for getter in list(self._getters)[:1] if self._balancer.in_order else list(self._getters):
            indices, reason = self._prefix(getter)
            if indices and reason:
                self._getters.remove(getter)
                return self._take(getter, indices, reason)
        return None

    def _prefix(self, getter: Getter) -> tuple[list[int], str]:
        """Return the items that somebody would get now, and why that is all, "" when more may come."""
        waiting = list({id(other.consumer): other.consumer for other in (*self._getters, getter)}.values())
        order = self._balancer.choose(self.key, self._items, getter.consumer, waiting, self.closed)
        if getter.max_weight is None:
            first = next(iter(order), None)
            return ([], "") if first is None else ([first], ENOUGH)
        chosen: list[int] = []
        total = 0.0
        reason = ""
        for index in order:
            weight = self._items[index].weight
            if chosen and total + weight > getter.max_weight:
                reason = NEXT
                break
            chosen.append(index)
            total += weight
        if chosen and total >= getter.max_weight:
            reason = WEIGHT
        if not reason and self.closed and not self.in_flight:
            reason = CLOSED
        if not reason and self._putters and not self.has_room(self._putters[0].item.size):
            reason = FULL
        if not reason and not getter.fill and len(chosen) >= getter.min_items:
            reason = ENOUGH
        return chosen, reason

    def _take(self, getter: Getter, indices: list[int], reason: str) -> Delivery:
        items = [self._items[index] for index in indices]
        for index in sorted(indices, reverse=True):
            del self._items[index]
        self._bytes -= sum(item.size for item in items)
        self.in_flight += len(items)
        getter.consumer.given += sum(item.weight for item in items)
        return Delivery(getter, items, reason)


def _remove(rows: deque[Any], ident: Any) -> Any:
    for row in rows:
        if row.ident == ident:
            rows.remove(row)
            return row
    return None
