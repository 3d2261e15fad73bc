"""Channels as their users see them: put, get, batches, bounds, and an end of the stream."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.errors import PeerLostError, RuntimeTimeout, UserError
from plugrl.runtime import trace
from plugrl.runtime.channel.errors import ChannelClosed
from plugrl.runtime.channel.record import SERVICE, ChannelOptions
from plugrl.runtime.transport.address import parse_address
from plugrl.runtime.transport.codec import decode, encode
from plugrl.runtime.transport.connection import Connection, segment_of
from plugrl.runtime.transport.endpoint import Endpoint
from plugrl.runtime.transport.pending import DEFAULT_TIMEOUT_S, Pending
from plugrl.runtime.transport.requests import Reply
from plugrl.runtime.transport.segments import Block, NoMemory

if TYPE_CHECKING:
    from plugrl.runtime.channel.home import Participant

DEFAULT_KEY = "default"
_GRACE_S = 0.9
"""The server ends waits at their deadline; one that has not answered so long after that does not answer at all."""
_consumers = itertools.count()


class Batch(list[Any]):
    """Items of one ``get_batch``: their ``weight`` together, and the ``reason`` why it is no more.

    ``weight``: the target is reached. ``next``: the next item is too heavy for it. ``closed``: nothing more will come.
    ``full``: the channel is at its bounds and takes nothing more. ``min_items``: there are enough, and that was asked
    for. ``timeout``: the time was over.
    """

    weight: float = 0.0
    reason: str = ""


class Channel:
    """One channel, seen from this process. Safe to use from several threads.

    Every wait has a ``timeout``: seconds, 60 when omitted; 0 does not wait, None waits for ever. With
    ``async_op=True`` a call returns at once with a :class:`~plugrl.runtime.transport.Pending`, for threads
    (``wait``) and coroutines (``await``) alike. Made by :meth:`create` and :meth:`connect`.
    """

    @classmethod
    def create(
        cls,
        owner: Participant,
        name: str,
        maxsize: int = 0,
        max_bytes: int = 0,
        *,
        exist_ok: bool = False,
        balancer: str = "fifo",
        balancer_options: Mapping[str, Any] | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
    ) -> Channel:
        """Create a channel in the run of a session or a worker.

        Args:
            owner: the session, or the worker.
            name: unique in the run.
            maxsize, max_bytes: what may wait under each key, in items and in bytes; 0 is no bound. One item that is
                larger than ``max_bytes`` is admitted into an empty queue.
            exist_ok: connect when the name is taken.
            balancer: who gets which item: ``fifo``, ``least_loaded``, ``weighted``, ``sticky``, ``kk``, or a plugin's.

        Raises:
            UserError: the name is taken, or unfit.
            NotRegistered, ConfigError: the balancer is unknown, or does not take the options.
        """
        from plugrl.runtime.channel import home

        options = ChannelOptions(
            maxsize=maxsize,
            max_bytes=max_bytes,
            balancer=balancer,
            balancer_options=tuple((balancer_options or {}).items()),
        )
        return home.create(owner, name, options, exist_ok=exist_ok, timeout=timeout)

    @classmethod
    def connect(cls, owner: Participant, name: str, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Channel:
        """Return the channel of this name as soon as somebody has created it. Raises RuntimeTimeout."""
        from plugrl.runtime.channel import home

        return home.connect(owner, name, timeout=timeout)

    def __init__(self, endpoint: Endpoint, server: str, name: str) -> None:
        self.name = name
        self.server = server
        self._endpoint = endpoint
        self.on_delete: Callable[[], None] = lambda: None
        self._consumer = f"{endpoint.hub.uid}.{next(_consumers)}"

    # ----------------------------------------------------------------- putting
    def put(
        self,
        item: Any,
        weight: float = 1,
        key: Hashable = DEFAULT_KEY,
        *,
        affinity: Hashable = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        async_op: bool = False,
    ) -> Any:
        """Put a tree of tensors, arrays and objects at the end of a key's queue; wait while that is full.

        Items of one producer keep their order. Afterwards the tensors may be changed. With ``async_op`` the result is a
        Pending, which ends when the channel has the item.

        Args:
            weight: what it counts in :meth:`get_batch` and for balancers, at least 0.
            affinity: items with the same one go to the same consumer, with the balancer ``sticky``.

        Raises:
            ChannelClosed: the channel takes no more items.
            ChannelFull: there is no room and ``timeout`` is 0.
            RuntimeTimeout: there was no room in time, or the channel's server does not answer.
            PeerLostError: the channel's server is gone.
        """
        if not weight >= 0:
            raise UserError(f"The weight of an item must be at least 0, not {weight!r}.")
        pending = self._put("put", item, weight, key, affinity, timeout)
        return pending if async_op else self._wait(pending, timeout)

    def put_nowait(
        self, item: Any, weight: float = 1, key: Hashable = DEFAULT_KEY, *, affinity: Hashable = None
    ) -> None:
        """Put an item if there is room. Raises ChannelFull, which is an ``asyncio.QueueFull`` too."""
        self.put(item, weight, key, affinity=affinity, timeout=0)

    # ----------------------------------------------------------------- getting
    def get(
        self, key: Hashable = DEFAULT_KEY, *, timeout: float | None = DEFAULT_TIMEOUT_S, async_op: bool = False
    ) -> Any:
        """Return the next item of a key; with ``async_op`` a Pending, which may be cancelled without a loss.

        Raises:
            ChannelClosed: the channel is closed and nothing is left.
            ChannelEmpty: nothing is there and ``timeout`` is 0.
            RuntimeTimeout: nothing came in time, or the channel's server does not answer.
            PeerLostError: the channel's server is gone.
        """
        pending = self._get(key, timeout, None).then(_only)
        return pending if async_op else self._wait(pending, timeout)

    def get_nowait(self, key: Hashable = DEFAULT_KEY) -> Any:
        """Return an item if one is there. Raises ChannelEmpty, which is an ``asyncio.QueueEmpty`` too."""
        return self.get(key, timeout=0)

    def get_batch(
        self,
        max_weight: float,
        *,
        min_items: int = 1,
        fill: bool = True,
        key: Hashable = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        async_op: bool = False,
    ) -> Any:
        """Return the first items of a key as a :class:`Batch`, taken at once, without another consumer in between.

        Their weight never exceeds ``max_weight``, unless the first item alone does: it then comes alone. With ``fill``
        the call waits until the batch cannot grow; without, until ``min_items`` are there. At the deadline it returns
        what is there if that is at least ``min_items``. Raises as :meth:`get` does, and then takes nothing.
        """
        if not max_weight >= 0 or min_items < 1:
            raise UserError(f"get_batch: max_weight {max_weight!r} must be >= 0 and min_items {min_items!r} >= 1.")
        pending = self._get(key, timeout, (max_weight, min_items, fill))
        return pending if async_op else self._wait(pending, timeout)

    def task_done(self, weight: float = 1) -> None:
        """Say that work of this weight is finished: balancers look at what a consumer still has before it."""
        connection = self._endpoint.hub.connection(parse_address(self.server), None)
        self._endpoint.requests.notify(connection, SERVICE, ("done", self.name, self._consumer, weight))

    def __iter__(self) -> Iterator[Any]:
        """Yield items of the default key until the channel is closed and empty."""
        while True:
            try:
                yield self.get(timeout=None)
            except ChannelClosed:
                return

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield as :meth:`__iter__` does, without blocking the event loop."""
        while True:
            try:
                yield await self.get(timeout=None, async_op=True).async_wait(None)
            except ChannelClosed:
                return

    # ----------------------------------------------------------------- the rest
    def qsize(self, key: Hashable = DEFAULT_KEY, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> int:
        """Return how many items wait under a key, 0 for an unknown one."""
        return int(self._ask("size", {"key": key}, timeout)[0])

    def empty(self, key: Hashable = DEFAULT_KEY, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> bool:
        """Whether no item waits under a key."""
        return self.qsize(key, timeout=timeout) == 0

    def full(self, key: Hashable = DEFAULT_KEY, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> bool:
        """Whether a put would have to wait."""
        return bool(self._ask("size", {"key": key}, timeout)[1])

    def close(self, key: Hashable | None = None, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> None:
        """Take no more items, under one key or any: puts raise ChannelClosed, gets when nothing is left."""
        self._ask("close", {"key": key, "everything": key is None}, timeout)

    def delete(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> None:
        """Close the channel, drop what is in it, and let its name be used again."""
        self._ask("delete", {}, timeout)
        self.on_delete()

    def info(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """Return the channel's options and how many keys, items and consumers it has."""
        return dict(self._ask("info", {}, timeout))

    def snapshot(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
        """Return a copy of what is in the channel, items on their way to a consumer included, and leave it there.

        The state is a dict of plain values and the items' own trees: ``{"version": 1, "items": [{"key", "weight",
        "affinity", "item"}, ...]}``. It is exact when nobody puts or gets meanwhile.
        """
        reply = self._wait(self._request("snapshot", {}, timeout, lambda reply: reply), timeout)
        items, offset = [], 0
        for key, weight, affinity, header, size in reply.body:
            payload = bytearray(memoryview(reply.payload)[offset : offset + size])
            offset += size
            item = decode(header, payload, self._endpoint.place)
            items.append({"key": key, "weight": weight, "affinity": affinity, "item": item})
        return {"version": 1, "items": items}

    def restore(self, state: dict[str, Any], *, timeout: float | None = DEFAULT_TIMEOUT_S) -> None:
        """Put the items of a :meth:`snapshot` into this channel, which must be empty, whatever its bounds are."""
        if state.get("version") != 1:
            raise UserError(f"This is no state of a channel that is known here: version {state.get('version')!r}.")
        if self.info(timeout=timeout)["items"]:
            raise UserError(f"Channel {self.name!r} is not empty: nothing can be restored into it.")
        for row in state["items"]:
            self._wait(self._put("restore", row["item"], row["weight"], row["key"], row["affinity"], timeout), timeout)

    # ----------------------------------------------------------------- requests
    def _put(
        self, operation: str, item: Any, weight: float, key: Hashable, affinity: Hashable, timeout: float | None
    ) -> Pending[None]:
        encoded = encode(item)
        arguments = {
            "key": key,
            "weight": weight,
            "affinity": affinity,
            "size": encoded.size or len(encoded.header),
            "timeout": timeout,
            "header": encoded.header,
        }
        with trace.span("channel.put", channel=self.name, bytes=encoded.size) as attributes:
            connection = self._connection()
            large = encoded.size > self._endpoint.config.inline_bytes
            block = self._place_in_memory(encoded, connection) if large else None
            if attributes is not None:
                attributes["transport"] = "shm" if block is not None else "net" if connection.network else "inline"
            if block is None:
                return self._request(operation, arguments, timeout, _nothing, encoded.buffers())
            return self._request(operation, arguments, timeout, _nothing, block=block)

    def _place_in_memory(self, encoded: Any, connection: Connection) -> Block | None:
        if connection.network:
            return None
        pool = self._endpoint.hub.pool
        try:
            block = pool.allocate(encoded.size)
        except NoMemory as error:
            self._endpoint.warn_no_memory(error)
            return None
        self._endpoint.hub.keep_trimmed()
        encoded.write_to(block.view)
        return block

    def _get(self, key: Hashable, timeout: float | None, batch: tuple[float, int, bool] | None) -> Pending[Batch]:
        arguments = {"key": key, "consumer": self._consumer, "timeout": timeout, "batch": batch}
        return self._request("get", arguments, timeout, self._receive, keeps=True)

    def _receive(self, reply: Reply) -> Batch:
        """Say that the items are here, and unpack them."""
        rows, reason = reply.body
        ident = reply.ident
        self._endpoint.requests.notify(reply.connection, SERVICE, ("taken", ident))
        batch = Batch()
        batch.reason = reason
        segments, offset = iter(reply.segments), 0
        with trace.span("channel.get", channel=self.name, items=len(rows)):
            for weight, header, size in rows:
                payload: Any
                if size < 0:
                    payload = self._endpoint.hub.view(reply.connection, *next(segments))
                else:
                    payload = reply.payload if len(rows) == 1 else memoryview(reply.payload)[offset : offset + size]
                    offset += size
                batch.append(decode(header, payload, self._endpoint.place))
                batch.weight += weight
        return batch

    def _ask(self, operation: str, arguments: dict[str, Any], timeout: float | None) -> Any:
        return self._wait(self._request(operation, arguments, timeout, lambda reply: reply.body), timeout)

    def _request(
        self,
        operation: str,
        arguments: dict[str, Any],
        timeout: float | None,
        finish: Any,
        payload: Any = (),
        *,
        block: Block | None = None,
        keeps: bool = False,
    ) -> Pending[Any]:
        endpoint = self._endpoint
        connection = self._connection()

        def make(ident: int) -> Pending[Any]:
            def take_back(_: Any) -> None:
                endpoint.requests.notify_soon(connection, SERVICE, ("cancel", ident))

            what = f"{endpoint.config.name} to {operation} on channel {self.name!r}"
            return Pending(what, finish=finish, on_cancel=take_back, on_drop=take_back if keeps else None)

        segments = []
        if block is not None:
            connection.lent.add(block.number)
            segments.append((segment_of(block), block.arena.descriptor))
        body = (operation, self.name, arguments)
        try:
            return endpoint.requests.ask(connection, SERVICE, body, make, payload=payload, segments=segments)
        except (PeerLostError, RuntimeTimeout):
            if block is not None:
                endpoint.hub.pool.free(block.number, retire=True)
            raise

    def _connection(self) -> Connection:
        return self._endpoint.hub.connection(parse_address(self.server), None)

    def _wait(self, pending: Pending[Any], timeout: float | None) -> Any:
        """Wait for what the server ends at the deadline; a little longer, in case it does not answer."""
        try:
            return pending.wait(None if timeout is None else timeout + _GRACE_S)
        except RuntimeTimeout:
            if not pending.done() and not pending.cancel():
                return pending.result()
            raise

    def __repr__(self) -> str:
        return f"Channel({self.name!r})"


def create_on(
    endpoint: Endpoint, server: str, name: str, options: ChannelOptions, *, exist_ok: bool, timeout: float | None
) -> Channel:
    """Create a channel at the server with an address, and return it."""
    channel = Channel(endpoint, server, name)
    if options.maxsize < 0 or options.max_bytes < 0:
        raise UserError(f"Channel {name!r}: maxsize and max_bytes must be at least 0.")
    channel._wait(channel._request("create", (options, exist_ok), timeout, _nothing), timeout)  # type: ignore[arg-type]
    return channel


def _only(batch: Batch) -> Any:
    return batch[0]


def _nothing(reply: Reply) -> None:
    return None
