"""The server of channels: in the thread of an endpoint, it keeps items and hands them out. It never looks into them.

Large payloads stay in the memory of who put them; the server holds the descriptor, so they outlive their producer. An
item that was handed out is kept until the consumer says that it has it; one whose consumer goes before that returns to
where it was.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from plugrl.errors import PlugRLError, RuntimeTimeout, TransportError, UserError, one_of
from plugrl.runtime.channel.errors import ChannelClosed, ChannelEmpty, ChannelFull
from plugrl.runtime.channel.queue import Delivery, Getter, Item, KeyQueue, Putter
from plugrl.runtime.channel.record import SERVICE, ChannelOptions, ChannelRecord, Content, Flight, Ident
from plugrl.runtime.transport.connection import Connection, Segment
from plugrl.runtime.transport.endpoint import Endpoint
from plugrl.runtime.transport.hub import Segments
from plugrl.runtime.transport.loop import Timer
from plugrl.runtime.transport.wire import Buffer


class ChannelServer:
    """The channels of one process. All methods run in the thread of the endpoint's loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._hub = endpoint.hub
        self._channels: dict[str, ChannelRecord] = {}
        self._flights: dict[Ident, Flight] = {}
        self._waiting: dict[Ident, tuple[ChannelRecord, KeyQueue, Timer | None]] = {}
        self._uses: Counter[tuple[str, int]] = Counter()
        """Items in each arena, queued or on their way."""
        endpoint.requests.serve(SERVICE, self)

    # ----------------------------------------------------------------- messages
    def on_request(self, connection: Connection, ident: int, body: Any, payload: Buffer, segments: Segments) -> None:
        """Take a request: ``(operation, name of the channel, arguments)``."""
        operation, name, arguments = body
        try:
            if operation == "create":
                self._create(name, *arguments)
                self._answer((connection, ident), None)
                return
            channel = self._channels.get(name)
            if channel is None:
                raise TransportError(f"There is no channel {name!r}. There are: {one_of(self._channels)}.")
            if operation in ("put", "restore"):
                content = Content(arguments.pop("header"), payload, segments[0] if segments else None)
                self._put(channel, (connection, ident), content, force=operation == "restore", **arguments)
            elif operation == "get":
                self._get(channel, (connection, ident), **arguments)
            elif operation == "snapshot":
                self._snapshot(channel, (connection, ident))
            else:
                self._answer((connection, ident), getattr(self, f"_do_{operation}")(channel, **arguments))
        except PlugRLError as error:
            self._answer((connection, ident), None, error=error)

    def on_notice(self, connection: Connection, body: Any) -> None:
        """Take what needs no answer."""
        operation, *arguments = body
        if operation == "taken":
            self._taken((connection, arguments[0]))
        elif operation == "cancel":
            self._cancel((connection, arguments[0]))
        elif operation == "done":
            name, consumer, weight = arguments
            found = self._channels[name].consumers.get(consumer) if name in self._channels else None
            if found is not None:
                found[0].done += weight

    def on_lost(self, connection: Connection) -> None:
        """Somebody is gone: its waits end, what was on its way to it returns, what it put stays."""
        for ident in [ident for ident in (*self._waiting, *self._flights) if ident[0] is connection]:
            self._cancel(ident)
        for channel in self._channels.values():
            for name in [name for name, (_, other) in channel.consumers.items() if other is connection]:
                channel.balancer.lost(channel.consumers.pop(name)[0])
            for queue in list(channel.queues.values()):
                self._settle(channel, queue)
        uid = connection.peer.uid
        self._forget_arenas([key for key in self._hub.arenas.owned_by(uid) if not self._uses[key]])

    def _answer(
        self,
        ident: Ident,
        body: Any,
        payload: Sequence[Buffer] = (),
        segments: Sequence[tuple[Segment, int]] = (),
        error: PlugRLError | None = None,
    ) -> None:
        connection, number = ident
        connection.post(("reply", number, error, body), payload, segments)

    # ----------------------------------------------------------------- operations
    def _create(self, name: str, options: ChannelOptions, exist_ok: bool) -> None:
        known = self._channels.get(name)
        if known is None:
            self._channels[name] = ChannelRecord(name, options)
        elif not exist_ok:
            raise UserError(f"A channel {name!r} exists already; connect to it, or create it with exist_ok=True.")

    def _put(
        self,
        channel: ChannelRecord,
        ident: Ident,
        content: Content,
        *,
        key: Hashable,
        weight: float,
        affinity: Hashable,
        size: int,
        timeout: float | None,
        force: bool,
    ) -> None:
        queue = channel.queue(key)
        try:
            if queue.closed and not force:
                raise _closed(channel, key)
            if timeout == 0 and queue.full() or (timeout == 0 and not queue.has_room(size)):
                raise ChannelFull(f"Channel {channel.name!r} is full (key {key!r}, {len(queue)} items).")
        except PlugRLError:
            self._give_back(content)
            channel.tidy(queue)
            raise
        channel.next_number += 1
        item = Item(channel.next_number, weight, affinity, size, content)
        if content.segment is not None:
            self._uses[content.segment[0].arena] += 1
        if force:
            queue.insert(item)
            self._answer(ident, None)
        else:
            queue.put(Putter(ident, item))
            self._wait(channel, queue, ident, timeout)
        self._settle(channel, queue)

    def _get(
        self,
        channel: ChannelRecord,
        ident: Ident,
        *,
        key: Hashable,
        consumer: str,
        timeout: float | None,
        batch: tuple[float, int, bool] | None,
    ) -> None:
        queue = channel.queue(key)
        who = channel.consumer(consumer, ident[0])
        queue.get(Getter(ident, who) if batch is None else Getter(ident, who, *batch))
        self._wait(channel, queue, ident, timeout)
        self._settle(channel, queue)
        if timeout == 0 and ident in self._waiting:
            self._expire(ident)

    def _do_size(self, channel: ChannelRecord, key: Hashable) -> tuple[int, bool]:
        queue = channel.queues.get(key)
        return (0, False) if queue is None else (len(queue), queue.full())

    def _do_close(self, channel: ChannelRecord, key: Hashable, everything: bool) -> None:
        if everything:
            channel.closed = True
        for queue in list(channel.queues.values()) if everything else [channel.queue(key)]:
            for putter in queue.close():
                self._refuse(putter, _closed(channel, queue.key))
            self._settle(channel, queue)

    def _do_info(self, channel: ChannelRecord) -> dict[str, Any]:
        return {
            "options": channel.options,
            "keys": len(channel.queues),
            "items": sum(map(len, channel.queues.values())),
            "in_flight": sum(queue.in_flight for queue in channel.queues.values()),
            "consumers": len(channel.consumers),
        }

    def _do_delete(self, channel: ChannelRecord) -> None:
        self._do_close(channel, None, True)
        del self._channels[channel.name]
        for queue in list(channel.queues.values()):
            for getter in queue.abandon():
                self._end_wait(getter.ident)
                self._answer(getter.ident, None, error=_closed(channel, queue.key))
            for item in queue.items:
                self._let_go(channel, item, lease_to=None)

    def _snapshot(self, channel: ChannelRecord, ident: Ident) -> None:
        """Send copies of everything that no consumer has yet, those on their way included, in order."""
        rows: list[tuple[int, Hashable, Item]] = []
        for queue in channel.queues.values():
            rows += [(item.number, queue.key, item) for item in queue.items]
        for flight in self._flights.values():
            if flight.channel is channel:
                rows += [(item.number, flight.queue.key, item) for item in flight.items]
        rows.sort(key=lambda row: row[0])
        payloads = [bytes(item.content.read()) for _, _, item in rows]
        body = [
            (key, item.weight, item.affinity, item.content.header, len(payload))
            for (_, key, item), payload in zip(rows, payloads, strict=True)
        ]
        self._answer(ident, body, payloads)

    # ----------------------------------------------------------------- what follows
    def _settle(self, channel: ChannelRecord, queue: KeyQueue) -> None:
        for result in queue.settle():
            if isinstance(result, Putter):
                self._end_wait(result.ident)
                self._answer(result.ident, None)
            else:
                self._deliver(channel, queue, result)
        for getter in queue.drained():
            self._end_wait(getter.ident)
            self._answer(getter.ident, None, error=_closed(channel, queue.key))
        channel.tidy(queue)

    def _deliver(self, channel: ChannelRecord, queue: KeyQueue, delivery: Delivery) -> None:
        ident: Ident = delivery.getter.ident
        self._end_wait(ident)
        self._flights[ident] = Flight(channel, queue, delivery.items, delivery.getter.consumer)
        rows, payloads, segments = [], [], []
        for item in delivery.items:
            content: Content = item.content
            if content.segment is not None and not ident[0].network:
                segment, arena = content.segment
                segments.append((segment, arena.descriptor))
                rows.append((item.weight, content.header, -1))
            else:
                payload = content.read()
                payloads.append(payload)
                rows.append((item.weight, content.header, len(payload)))
        self._answer(ident, (rows, delivery.reason), payloads, segments)

    def _taken(self, ident: Ident) -> None:
        flight = self._flights.pop(ident, None)
        if flight is None:
            return
        flight.queue.in_flight -= len(flight.items)
        for item in flight.items:
            self._let_go(flight.channel, item, lease_to=ident[0])
        self._settle(flight.channel, flight.queue)

    def _let_go(self, channel: ChannelRecord, item: Item, lease_to: Connection | None) -> None:
        """Forget an item. Its memory is the consumer's from now on, who gives it back, or given back now."""
        channel.balancer.taken(item.number)
        segment = item.content.segment
        if segment is None:
            return
        key = segment[0].arena
        self._uses[key] -= 1
        if lease_to is not None and not lease_to.network:
            lease_to.leased.add(segment[0].lease)
        else:
            self._hub.pass_on([segment[0].lease], retire=False)
        if not self._uses[key]:
            del self._uses[key]
            if not self._hub.connections_of(key[0]) and key[0] != self._hub.uid:
                self._forget_arenas([key])

    def _forget_arenas(self, keys: list[tuple[str, int]]) -> None:
        """The owner of arenas is gone and nothing of theirs is left here: no consumer need keep them open."""
        self._hub.announce_drop(keys)

    def _cancel(self, ident: Ident) -> None:
        """End a wait, or take back what was sent in answer and not taken."""
        flight = self._flights.pop(ident, None)
        if flight is not None:
            flight.queue.in_flight -= len(flight.items)
            flight.consumer.given -= sum(item.weight for item in flight.items)
            flight.queue.take_back(flight.items)
            flight.channel.queues.setdefault(flight.queue.key, flight.queue)
            self._settle(flight.channel, flight.queue)
            return
        waiting = self._waiting.get(ident)
        if waiting is None:
            return
        channel, queue, _ = waiting
        self._end_wait(ident)
        putter = queue.withdraw_putter(ident)
        if putter is not None:
            self._let_go(channel, putter.item, lease_to=None)
        queue.withdraw_getter(ident)
        self._settle(channel, queue)

    def _wait(self, channel: ChannelRecord, queue: KeyQueue, ident: Ident, timeout: float | None) -> None:
        timer = None
        if timeout:
            timer = self._hub.loop.call_at(time.monotonic() + timeout, lambda: self._expire(ident))
        self._waiting[ident] = (channel, queue, timer)

    def _end_wait(self, ident: Ident) -> None:
        waiting = self._waiting.pop(ident, None)
        if waiting is not None and waiting[2] is not None:
            waiting[2].cancel()

    def _expire(self, ident: Ident) -> None:
        if ident not in self._waiting:
            return
        channel, queue, timer = self._waiting[ident]
        self._end_wait(ident)
        putter = queue.withdraw_putter(ident)
        if putter is not None:
            self._refuse(putter, RuntimeTimeout(_no_room(channel, queue)))
            return
        result = queue.expire(ident)
        if isinstance(result, Delivery):
            self._deliver(channel, queue, result)
        elif isinstance(result, Getter):
            text = f"Channel {channel.name!r} has nothing to give (key {queue.key!r}, {len(queue)} items wait)."
            self._answer(ident, None, error=ChannelEmpty(text) if timer is None else RuntimeTimeout(text))
        self._settle(channel, queue)

    def _refuse(self, putter: Putter, error: PlugRLError) -> None:
        self._end_wait(putter.ident)
        content: Content = putter.item.content
        if content.segment is not None:
            self._uses[content.segment[0].arena] -= 1
        self._give_back(content)
        self._answer(putter.ident, None, error=error)

    def _give_back(self, content: Content) -> None:
        if content.segment is not None:
            self._hub.pass_on([content.segment[0].lease], retire=False)


def _closed(channel: ChannelRecord, key: Hashable) -> ChannelClosed:
    return ChannelClosed(f"Channel {channel.name!r} is closed (key {key!r}).")


def _no_room(channel: ChannelRecord, queue: KeyQueue) -> str:
    options = channel.options
    return (
        f"Channel {channel.name!r} has no room (key {queue.key!r}, {len(queue)} items wait for consumers; maxsize "
        f"{options.maxsize}, max_bytes {options.max_bytes})."
    )
