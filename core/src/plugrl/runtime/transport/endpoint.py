"""The one door of a process to the others of its run: trees of tensors between pairs of processes."""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from plugrl.errors import PeerLostError, RuntimeTimeout, TransportError
from plugrl.runtime import trace
from plugrl.runtime.transport import choice as choices
from plugrl.runtime.transport.address import Address, EndpointConfig, parse_address
from plugrl.runtime.transport.codec import Encoded, Place, decode, encode
from plugrl.runtime.transport.collective_links import CollectiveLinks
from plugrl.runtime.transport.connection import Connection, segment_of
from plugrl.runtime.transport.device_paths import DevicePaths, Packing
from plugrl.runtime.transport.hub import Hub, Segments
from plugrl.runtime.transport.inbox import Inbox, LaneKey, Message
from plugrl.runtime.transport.pending import DEFAULT_TIMEOUT_S, Pending
from plugrl.runtime.transport.requests import Requests
from plugrl.runtime.transport.segments import Block, NoMemory
from plugrl.runtime.transport.wire import Buffer, FlowLost

logger = logging.getLogger(__name__)

_WINDOW_MESSAGES = 4096


@dataclass
class _Unread:
    """A message that the other end has not taken yet; ``kept`` must live until then."""

    size: int
    pending: Pending[None] | None
    kept: Any = None


class Endpoint:
    """Sends to, and receives from, the other endpoints of a run, each known by its :attr:`address`.

    Use :func:`plugrl.runtime.transport.current` for the one of this process; only tests open several.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.hub = Hub(config)
        self.requests = Requests(self.hub)
        self.place: Place | None = None
        """Where tensors that came from a device are put; they stay on the host while it is None."""
        self.address = str(self.hub.place)
        """What others need to reach this endpoint: a line of JSON."""
        self._inbox = Inbox()
        self._room = threading.Condition()
        self._unread: dict[Connection, dict[int, _Unread]] = {}
        self._incomplete: dict[tuple[str, int], tuple[LaneKey, Message]] = {}
        self._numbers = itertools.count(1)
        self._memory_problem = ""
        self._paths = DevicePaths()
        self._links: CollectiveLinks | None = None
        self.hub.on("message", self._take_message)
        self.hub.on("payload", self._take_payload)
        self.hub.on("taken", self._take_taken)
        self.hub.on_lost(self._connection_lost)

    def use_devices(
        self, paths: DevicePaths, open_store: Callable[[], Any], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Let tensors of devices go by what the platform offers, and put those that arrive on this process's device.

        For the platform's collectives two processes meet in the store that ``open_store`` opens.
        """
        self._paths = paths
        self.place = paths.place
        if not paths.ccl:
            self._links = CollectiveLinks(self.hub.uid, paths, open_store, timeout_s)

    # ----------------------------------------------------------------- use
    def send(
        self,
        address: str,
        tree: Any,
        tag: str = "",
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        transport: str | None = None,
        acknowledge: bool = False,
    ) -> None:
        """Send a tree of tensors, arrays and objects. Afterwards the sender may change its tensors.

        Messages of one pair and tag arrive in the order they were sent. The call returns when the message is out; with
        ``acknowledge`` when the other end has taken it. Within one process the tree goes by reference.

        Args:
            transport: the way to take; chosen by the two places and the payload when omitted.

        Raises:
            PeerLostError: the other process is gone.
            RuntimeTimeout: the message was not out, or taken, in time.
            TransportError: the tree cannot be sent, not by this way, or (with ``acknowledge``) it was refused.
        """
        self.isend(address, tree, tag, timeout=timeout, transport=transport, acknowledge=acknowledge).wait(timeout)

    def isend(
        self,
        address: str,
        tree: Any,
        tag: str = "",
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        transport: str | None = None,
        acknowledge: bool = False,
    ) -> Pending[None]:
        """Send as :meth:`send` does, but with ``acknowledge`` do not wait: the result can be waited for."""
        target, deadline = parse_address(address), _deadline(timeout)
        taken: Pending[None] = Pending(f"{self.config.name} to send to {target.name}", finish=lambda _: None)
        encoded, choice = self._prepare(target, tree, transport)
        with trace.span(
            "transport.send",
            to=target.name,
            tag=tag,
            bytes=encoded.size,
            transport=choice.transport.name,
            reason=choice.reason,
            estimate_us=choice.cost_us,
        ):
            if choice.transport is choices.LOCAL:
                self._send_here(tree, tag, taken if acknowledge else None)
            else:
                self._send_there(target, encoded, tag, choice, taken if acknowledge else None, deadline)
        if not acknowledge:
            taken.resolve(None)
        return taken

    def recv(self, address: str, tag: str = "", *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Any:
        """Return the next message of a peer with this tag; its tensors are contiguous and may be changed.

        Raises PeerLostError, RuntimeTimeout, and TransportError when the message cannot be unpacked here.
        """
        return _take(self.irecv(address, tag, timeout=timeout), timeout)

    def irecv(self, address: str, tag: str = "", *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Pending[Any]:
        """Ask for the next message of a peer. Cancelled or dropped, it leaves the message to the next one who asks.

        ``timeout`` is for the connection, if there is none yet.
        """
        return self._ask(address, tag, timeout, None)

    def send_tensor(
        self,
        address: str,
        tensor: Any,
        tag: str = "",
        *,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        transport: str | None = None,
    ) -> None:
        """Send one tensor to a :meth:`recv_tensor`; returns when it is there.

        Raises TransportError when the receiver's tensor has another shape or dtype; both ends may go on.
        """
        self.send(address, tensor, tag, timeout=timeout, transport=transport, acknowledge=True)

    def recv_tensor(
        self, address: str, tensor: Any, tag: str = "", *, timeout: float | None = DEFAULT_TIMEOUT_S
    ) -> Any:
        """Receive into ``tensor`` and return it. Raises TransportError as :meth:`send_tensor` does."""
        return _take(self._ask(address, tag, timeout, tensor), timeout)

    def peer_lost(self, address: str, reason: str) -> None:
        """Take note that a process is dead or frozen: waits for it end with PeerLostError."""
        target = parse_address(address)
        self.hub.peer_lost(target.uid, reason)
        self._fail_peer(target.uid, reason)

    def disconnect(self, address: str) -> None:
        """End the connections of a pair; the next message makes new ones, also after a loss."""
        uid = parse_address(address).uid
        if self._links is not None:
            self._links.forget(uid)
        self.hub.disconnect(uid)
        self.hub.forget(uid)

    def close(self) -> None:
        """End all connections, give back the memory and remove the socket. May be repeated."""
        if self._links is not None:
            self._links.close()
        self.hub.close()
        self._inbox.close(TransportError(f"The endpoint of {self.config.name} is closed."))

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------- sending
    def _prepare(self, target: Address, tree: Any, wanted: str | None) -> tuple[Encoded, choices.Choice]:
        self.hub.check_open()
        source = self.hub.place
        if target.uid == source.uid:
            return Encoded(b"", 0), choices.choose(source, target, choices.PayloadSpec(size=0), wanted)
        encoded = encode(tree)
        spec = choices.PayloadSpec(
            size=encoded.size,
            device_types=encoded.device_types,
            inline_bytes=self.config.inline_bytes,
            strict_device=self.config.strict_device,
            memory=self._memory_problem,
            paths=self._paths,
        )
        choice = choices.choose(source, target, spec, wanted)
        export = choice.transport.export()
        # A second time where tensors of devices stay there, which is known only now.
        return (encode(tree, export) if export is not None else encoded), choice

    def _send_here(self, tree: Any, tag: str, taken: Pending[None] | None) -> None:
        message = Message(ident=0, way="local", tree=tree, taken=taken)
        self._inbox.deliver((self.hub.uid, tag), message)

    def _send_there(
        self,
        target: Address,
        encoded: Encoded,
        tag: str,
        choice: choices.Choice,
        taken: Pending[None] | None,
        deadline: float | None,
    ) -> None:
        connection = self.hub.connection(target, deadline)
        ident = next(self._numbers)
        packing = encoded.export if isinstance(encoded.export, Packing) else None
        size = encoded.size + (packing.size if packing is not None else 0)
        self._enter_window(connection, ident, _Unread(size, taken, encoded.exported or None), deadline)
        block: Block | None = None
        head = ("message", ident, tag, choice.transport.name, encoded.header)
        try:
            if packing is not None:
                self._send_by_collectives(connection, head, encoded, packing, deadline)
                return
            if choice.transport.host_memory and encoded.size:
                block = self._place_in_memory(encoded, choice)
            if block is not None:
                connection.lent.add(block.number)
                descriptor = block.arena.descriptor
                connection.send((*head, False), segments=[(segment_of(block), descriptor)], deadline=deadline)
            elif choice.transport is choices.INLINE or len(connection.flows) == 1 or not encoded.size:
                # One connection, one stream: the payload follows its header.
                connection.send((*head, False), encoded.buffers(), deadline=deadline)
            else:
                connection.send((*head, True), deadline=deadline)
                connection.bulk().send(pickle.dumps(("payload", ident, [])), encoded.buffers(), deadline=deadline)
        except TransportError:
            self._leave_window(connection, ident)
            raise
        except (FlowLost, TimeoutError) as error:
            self._leave_window(connection, ident)
            if block is not None:
                self.hub.pool.free(block.number, retire=True)
            if isinstance(error, FlowLost):
                raise PeerLostError(self.hub.loss_of(target.uid) or f"{target.label} is lost: {error}.") from None
            raise RuntimeTimeout(f"{self.config.name} to send to {target.label}: {error}") from None

    def _send_by_collectives(
        self, connection: Connection, head: tuple[Any, ...], encoded: Encoded, packing: Packing, deadline: float | None
    ) -> None:
        assert self._links is not None
        flat = packing.flat()

        def announce(number: int) -> None:
            connection.send((*head, (number, packing.size)), encoded.buffers(), deadline=deadline)

        self._links.send(connection.peer.uid, flat, announce)

    def _place_in_memory(self, encoded: Encoded, choice: choices.Choice) -> Block | None:
        """Copy a payload into shared memory; None when there is none, and then it goes another way."""
        try:
            block = self.hub.pool.allocate(encoded.size)
        except NoMemory as error:
            if choice.reason == choices.ASKED_FOR:
                raise TransportError(f'transport="shm" is not possible: {error}') from None
            self.warn_no_memory(error)
            return None
        self._memory_problem = ""
        self.hub.keep_trimmed()
        encoded.write_to(block.view)
        return block

    def warn_no_memory(self, error: NoMemory) -> None:
        """Say once that payloads take a slower way."""
        if not self._memory_problem:
            self._memory_problem = str(error)
            logger.warning("No shared memory (%s): payloads go through sockets, at a lower speed.", error)

    def _enter_window(self, connection: Connection, ident: int, unread: _Unread, deadline: float | None) -> None:
        """Wait until the other end has taken so much that another message may go."""
        with self._room:
            open_messages = self._unread.setdefault(connection, {})

            def fits() -> bool:
                held = sum(row.size for row in open_messages.values()) if unread.size else 0
                return connection.lost is not None or not open_messages or (
                    len(open_messages) < _WINDOW_MESSAGES and held + unread.size <= self.config.window_bytes
                )

            if not self._room.wait_for(fits, _left(deadline)):
                raise RuntimeTimeout(
                    f"{self.config.name} to send to {connection.peer.label}: it has not taken "
                    f"{len(open_messages)} messages that were sent before."
                )
            open_messages[ident] = unread

    def _leave_window(self, connection: Connection, ident: int) -> _Unread | None:
        with self._room:
            unread = self._unread.get(connection, {}).pop(ident, None)
            if not self._unread.get(connection):
                self._unread.pop(connection, None)
            self._room.notify_all()
            return unread

    # ----------------------------------------------------------------- receiving
    def _ask(self, address: str, tag: str, timeout: float | None, into: Any) -> Pending[Any]:
        self.hub.check_open()
        target = parse_address(address)
        key = (target.uid, tag)
        if target.uid != self.hub.uid and not self._inbox.has(key):
            # Only over a connection is its end noticed.
            self.hub.connection(target, _deadline(timeout))
        loop, inbox = self.hub.loop, self._inbox
        pending: Pending[Any] = Pending(
            f"{self.config.name} to receive from {target.name}" + (f", tag {tag!r}" if tag else ""),
            finish=partial(self._open, target, into),
            on_cancel=lambda pending: inbox.forget(key, pending),
            on_drop=lambda message: loop.call_soon(partial(inbox.put_back, key, message)),
        )
        inbox.wait(key, pending)
        reason = self.hub.loss_of(target.uid)
        if reason is not None:  # It went between the lines above, when nobody waited.
            inbox.fail(target.uid, PeerLostError(reason))
        return pending

    def _open(self, source: Address, into: Any, message: Message) -> Any:
        """Make the tree of a message that somebody takes, and tell the sender how that went."""
        error: TransportError | None = None
        with trace.span("transport.receive", source=source.name, transport=message.way):
            try:
                tree = message.tree if message.way == "local" else self._unpack(message)
                return tree if into is None else _copy_into(into, tree)
            except TransportError as refused:
                error = refused
                raise
            finally:
                message.segment = None
                self._acknowledge(message, error)

    def _unpack(self, message: Message) -> Any:
        if message.error is not None:
            raise message.error
        payload = message.payload if message.payload is not None else b""
        if message.segment is not None:
            assert message.connection is not None
            payload = self.hub.view(message.connection, *message.segment)
        return decode(message.header, payload, self.place, message.on_device)

    def _acknowledge(self, message: Message, error: TransportError | None) -> None:
        if message.taken is not None:
            message.taken.fail(error) if error is not None else message.taken.resolve(None)
        if message.connection is None:
            return
        try:
            message.connection.send(("taken", message.ident, error), deadline=time.monotonic() + 1.0)
        except (FlowLost, TimeoutError):
            message.connection.post(("taken", message.ident, error))  # Lost, or as soon as the sender reads again.

    def _take_message(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, rows: Segments) -> None:
        _, ident, tag, way, header, later, _ = message
        key = (connection.peer.uid, tag)
        found = Message(
            ident=ident,
            way=way,
            header=header,
            payload=payload,
            segment=rows[0] if rows else None,
            connection=connection,
        )
        if isinstance(later, tuple):
            found.complete = False
            self._take_from_device(connection, key, found, *later)
        elif later:
            early = connection.arrived.pop(ident, None)
            if early is not None:
                found.payload = early
            else:
                found.complete = False
                self._incomplete[(connection.ident, ident)] = (key, found)
        self._inbox.deliver(key, found)

    def _take_from_device(self, connection: Connection, key: LaneKey, message: Message, number: int, size: int) -> None:
        """Have what was announced taken from the collectives; the message is whole then."""
        def done(flat: Any, error: TransportError | None) -> None:
            message.on_device, message.error = flat, error
            self._inbox.completed(key, message)

        if self._links is None:
            done(None, TransportError(f"{self.config.name} has no device that collectives reach."))
        else:
            self._links.receive(connection.peer.uid, number, size, done)

    def _take_payload(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, _: Segments) -> None:
        found = self._incomplete.pop((connection.ident, message[1]), None)
        if found is None:
            connection.arrived[message[1]] = payload
        else:
            self._inbox.completed(*found, payload)

    def _take_taken(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, _: Segments) -> None:
        _, ident, error, _ = message
        unread = self._leave_window(connection, ident)
        if unread is not None and unread.pending is not None:
            unread.pending.fail(error) if error is not None else unread.pending.resolve(None)
        elif error is not None:
            logger.warning("%s refused a message of %s: %s", connection.peer.label, self.config.name, error)

    # ----------------------------------------------------------------- losses
    def _connection_lost(self, connection: Connection, reason: str) -> None:
        for key in [key for key in self._incomplete if key[0] == connection.ident]:
            del self._incomplete[key]
        with self._room:
            unread = self._unread.pop(connection, {})
            self._room.notify_all()
        for row in unread.values():
            if row.pending is not None:
                row.pending.fail(PeerLostError(reason))
        if self._links is not None and not self.hub.connections_of(connection.peer.uid):
            self._links.forget(connection.peer.uid)
        if not self.hub.connections_of(connection.peer.uid):
            self._fail_peer(connection.peer.uid, reason)

    def _fail_peer(self, uid: str, reason: str) -> None:
        self._inbox.fail(uid, PeerLostError(reason))


def _copy_into(target: Any, tree: Any) -> Any:
    import torch

    if not isinstance(tree, torch.Tensor):
        raise TransportError(f"A tensor of shape {tuple(target.shape)} was expected, {type(tree).__name__} came.")
    if tree.shape != target.shape or tree.dtype != target.dtype:
        raise TransportError(
            f"A tensor of shape {tuple(target.shape)} and {target.dtype} was expected, one of shape "
            f"{tuple(tree.shape)} and {tree.dtype} came."
        )
    with torch.no_grad():
        target.copy_(tree)
    return target


def _take(pending: Pending[Any], timeout: float | None) -> Any:
    """Wait; at the deadline leave the message to whoever asks next, unless it came in that moment."""
    try:
        return pending.wait(timeout)
    except TimeoutError:
        if pending.cancel():
            raise
        return pending.result()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
