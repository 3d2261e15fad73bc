"""What the server of channels keeps: channels, their consumers, items and those on their way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from plugrl.runtime.channel.balancers import Consumer, make_balancer
from plugrl.runtime.channel.queue import Item, KeyQueue
from plugrl.runtime.transport.connection import Connection, Segment
from plugrl.runtime.transport.segments import ForeignArena
from plugrl.runtime.transport.wire import Buffer

SERVICE = "channel"

Ident = tuple[Connection, int]
"""A request: its connection and number."""


@dataclass(frozen=True, kw_only=True)
class ChannelOptions:
    """Bounds, for each key (0: none), and the balancer of a channel."""

    maxsize: int = 0
    max_bytes: int = 0
    balancer: str = "fifo"
    balancer_options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Content:
    """What the server keeps of an item: the header of its tree, and its payload here or in shared memory."""

    header: bytes
    payload: Buffer
    segment: tuple[Segment, ForeignArena] | None

    def read(self) -> Buffer:
        """Return the payload."""
        if self.segment is None:
            return self.payload
        segment, arena = self.segment
        return arena.view(segment.offset, segment.size)


@dataclass(frozen=True)
class Flight:
    """Items on their way to a consumer."""

    channel: ChannelRecord
    queue: KeyQueue
    items: list[Item]
    consumer: Consumer


class ChannelRecord:
    """One channel: its queues by key, and its consumers."""

    def __init__(self, name: str, options: ChannelOptions) -> None:
        self.name = name
        self.options = options
        self.balancer = make_balancer(options.balancer, dict(options.balancer_options))
        self.queues: dict[Hashable, KeyQueue] = {}
        self.consumers: dict[str, tuple[Consumer, Connection]] = {}
        self.closed = False
        self.next_number = 0

    def queue(self, key: Hashable) -> KeyQueue:
        """Return the queue of a key, which begins to exist."""
        queue = self.queues.get(key)
        if queue is None:
            queue = KeyQueue(key, self.balancer, self.options.maxsize, self.options.max_bytes)
            queue.closed = self.closed
            self.queues[key] = queue
        return queue

    def tidy(self, queue: KeyQueue) -> None:
        """Forget a queue that holds nothing."""
        if queue.idle or (self.closed and queue.closed and not len(queue) and not queue.in_flight):
            self.queues.pop(queue.key, None)

    def consumer(self, name: str, connection: Connection) -> Consumer:
        """Return a consumer, who is new at its first request."""
        found = self.consumers.get(name)
        if found is None:
            self.next_number += 1
            found = self.consumers[name] = (Consumer(name, self.next_number), connection)
        return found[0]
