"""What arrived and was not asked for yet, and who asks for what has not arrived: a lane for each peer and tag."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from plugrl.errors import TransportError
from plugrl.runtime.transport.connection import Connection, Segment
from plugrl.runtime.transport.pending import Pending
from plugrl.runtime.transport.segments import ForeignArena
from plugrl.runtime.transport.wire import Buffer

LaneKey = tuple[str, str]
"""uid of the sender, tag."""


@dataclass
class Message:
    """One message. ``complete`` is False while its payload is still on another flow."""

    ident: int
    way: str
    header: bytes = b""
    payload: Buffer | None = None
    segment: tuple[Segment, ForeignArena] | None = None
    connection: Connection | None = None
    tree: Any = None
    taken: Pending[None] | None = None
    """Who waits, in this process, for it to be taken."""
    complete: bool = True
    on_device: Any = None
    """What came from device to device, as bytes there."""
    error: TransportError | None = None
    """Why the rest of it did not come."""


@dataclass
class _Lane:
    messages: deque[Message] = field(default_factory=deque)
    waiters: deque[Pending[Any]] = field(default_factory=deque)


class Inbox:
    """All lanes. A lane without messages and waiters takes no memory."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._lanes: dict[LaneKey, _Lane] = {}

    def deliver(self, key: LaneKey, message: Message) -> None:
        """Put a message at the end of its lane."""
        with self._mutex:
            lane = self._lanes.setdefault(key, _Lane())
            lane.messages.append(message)
            self._match(key, lane)

    def put_back(self, key: LaneKey, message: Message) -> None:
        """Put a message that nobody took at the head of its lane."""
        with self._mutex:
            lane = self._lanes.setdefault(key, _Lane())
            lane.messages.appendleft(message)
            self._match(key, lane)

    def completed(self, key: LaneKey, message: Message, payload: Buffer | None = None) -> None:
        """Give a message its payload, unless it has one already."""
        with self._mutex:
            message.payload, message.complete = payload if payload is not None else message.payload, True
            lane = self._lanes.get(key)
            if lane is not None:
                self._match(key, lane)

    def wait(self, key: LaneKey, pending: Pending[Any]) -> None:
        """Resolve ``pending`` with the next message of the lane."""
        with self._mutex:
            lane = self._lanes.setdefault(key, _Lane())
            lane.waiters.append(pending)
            self._match(key, lane)

    def forget(self, key: LaneKey, pending: Pending[Any]) -> None:
        """Take back :meth:`wait`."""
        with self._mutex:
            lane = self._lanes.get(key)
            if lane is not None and pending in lane.waiters:
                lane.waiters.remove(pending)
                self._match(key, lane)

    def has(self, key: LaneKey) -> bool:
        """Whether a message can be taken at once."""
        with self._mutex:
            lane = self._lanes.get(key)
            return lane is not None and bool(lane.messages) and lane.messages[0].complete

    def fail(self, uid: str, error: Exception) -> None:
        """End all waits for messages of one sender, and drop what did not arrive whole. The rest can still be taken."""
        with self._mutex:
            for key in [key for key in self._lanes if key[0] == uid]:
                lane = self._lanes[key]
                lane.messages = deque(message for message in lane.messages if message.complete)
                self._match(key, lane)
                for pending in lane.waiters:
                    pending.fail(error)
                lane.waiters.clear()
                self._match(key, lane)

    def close(self, error: Exception) -> None:
        """End all waits and drop all messages."""
        with self._mutex:
            lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            for pending in lane.waiters:
                pending.fail(error)

    def __len__(self) -> int:
        return len(self._lanes)

    def _match(self, key: LaneKey, lane: _Lane) -> None:
        while lane.messages and lane.messages[0].complete and lane.waiters:
            # One that was cancelled meanwhile takes nothing.
            if lane.waiters.popleft().resolve(lane.messages[0]):
                lane.messages.popleft()
        if not lane.messages and not lane.waiters:
            self._lanes.pop(key, None)
