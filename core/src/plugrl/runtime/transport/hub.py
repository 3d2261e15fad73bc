"""The connections of a process, the shared memory behind them, and who is told what arrives and who is lost."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plugrl.errors import PeerLostError, TransportError
from plugrl.runtime.transport.address import Address, EndpointConfig, socket_path
from plugrl.runtime.transport.connection import ArenaTable, Connection, Segment
from plugrl.runtime.transport.greeting import Hello, Listener, dial
from plugrl.runtime.transport.loop import Loop
from plugrl.runtime.transport.segments import ArenaPool, ForeignArena
from plugrl.runtime.transport.wire import Buffer, Flow, FlowLost

logger = logging.getLogger(__name__)

_TRIM_S = 0.5
_GOODBYE_S = 0.5
_BACKLOG = 512

Segments = list[tuple[Segment, ForeignArena]]
Handler = Callable[[Connection, tuple[Any, ...], Buffer, Segments], None]
OnLost = Callable[[Connection, str], None]


class Hub:
    """Opens at once: sockets that listen, a thread, and nothing else. Connections are made when they are needed.

    Messages are tuples that begin with a kind; :meth:`on` says who takes a kind.
    """

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.uid = secrets.token_hex(8)
        self.pool = ArenaPool(self.uid, config.memory_limit())
        self.arenas = ArenaTable()
        self.loop = Loop(f"plugrl-endpoint-{config.name}")
        self._mutex = threading.RLock()
        self._connections: dict[str, Connection] = {}
        self._all: dict[tuple[str, str], Connection] = {}
        self._dialling: dict[str, threading.Lock] = {}
        self._lost: dict[str, str] = {}
        self._on_lost: list[OnLost] = []
        self._trimming = False
        self.closed = False
        self._handlers: dict[str, Handler] = {
            "release": self._take_release,
            "drop": self._take_drop,
            "bye": self._take_bye,
        }
        self._path = socket_path(config.folder, self.uid)
        self._listeners, port = self._listen()
        self.place = Address(
            uid=self.uid,
            name=config.name,
            node=config.node,
            pid=os.getpid(),
            path=self._path,
            host=config.host,
            port=port,
            device=config.device,
        )
        self.loop.call_soon(self._start_listening)

    def on(self, kind: str, handler: Handler) -> None:
        """Have ``handler`` called, in the loop's thread, with every message of a kind."""
        self._handlers[kind] = handler

    def on_lost(self, callback: OnLost) -> None:
        """Have ``callback`` called, in the loop's thread, with every connection that ends and the reason."""
        self._on_lost.append(callback)

    # ----------------------------------------------------------------- connections
    def connection(self, target: Address, deadline: float | None) -> Connection:
        """Return the connection to an endpoint, made now if need be. Raises PeerLostError and RuntimeTimeout."""
        with self._mutex:
            self.check_open()
            found = self._connections.get(target.uid)
            if found is not None and found.lost is None:
                return found
            if target.uid in self._lost:
                raise PeerLostError(self._lost[target.uid])
            gate = self._dialling.setdefault(target.uid, threading.Lock())
        with gate:
            with self._mutex:
                found = self._connections.get(target.uid)
            if found is not None and found.lost is None:
                return found
            return self._dial(target, deadline)

    def check_open(self) -> None:
        """Raise TransportError when this endpoint is closed."""
        if self.closed:
            raise TransportError(f"The endpoint of {self.config.name} is closed.")

    def loss_of(self, uid: str) -> str | None:
        """Return why an endpoint counts as lost, None when it does not."""
        return self._lost.get(uid)

    def connections_of(self, uid: str) -> list[Connection]:
        """Return all connections to an endpoint, whoever made them."""
        with self._mutex:
            return [connection for connection in self._all.values() if connection.peer.uid == uid]

    def disconnect(self, uid: str) -> None:
        """End the connections to an endpoint; both ends may connect again."""
        ended = threading.Event()
        for connection in self.connections_of(uid):
            self._say_goodbye(connection, "", _GOODBYE_S)
        self.loop.call_soon(partial(self._end_all, uid, "disconnected", ended))
        if not self.loop.in_thread():
            ended.wait(timeout=5.0)

    def peer_lost(self, uid: str, reason: str) -> None:
        """Take note that a process is dead or frozen, from somebody who knows."""
        with self._mutex:
            self._lost.setdefault(uid, reason)
        self.loop.call_soon(partial(self._end_all, uid, reason, threading.Event()))

    def forget(self, uid: str) -> None:
        """Let an endpoint that counts as lost be connected to again."""
        with self._mutex:
            self._lost.pop(uid, None)

    def close(self) -> None:
        """Say goodbye, end everything and remove the socket. May be repeated."""
        with self._mutex:
            if self.closed:
                return
            self.closed = True
            connections = list(self._all.values())
        for connection in connections:
            self._say_goodbye(connection, f"{self.place.label} closed its endpoint.", _GOODBYE_S)
        ended = threading.Event()
        self.loop.call_soon(partial(self._end_everything, ended))
        ended.wait(timeout=5.0)
        self.loop.stop()
        Path(self._path).unlink(missing_ok=True)
        self.pool.close()

    def _dial(self, target: Address, deadline: float | None) -> Connection:
        network = target.node != self.config.node
        connection = Connection(target, secrets.token_hex(8), self._dispatch, network=network)
        sockets: list[socket.socket] = []
        try:
            for index in range(max(1, self.config.flows)):
                hello = Hello(self.place, connection.ident, index)
                sockets.append(dial(target, hello, self.config.secret, network=network, deadline=deadline))
        except BaseException:
            for opened in sockets:
                opened.close()
            raise
        connection.flows = [
            Flow(opened, self.loop, connection.on_frame, partial(self._flow_lost, connection)) for opened in sockets
        ]
        with self._mutex:
            self._connections[target.uid] = connection
            self._all[("dialled", connection.ident)] = connection
        for flow in connection.flows:
            self.loop.call_soon(partial(self.loop.add, flow))
        return connection

    def _greeted(self, opened: socket.socket, hello: Hello) -> None:
        """Take up a connection that another endpoint made; its flows may arrive in any order."""
        key = ("accepted", hello.ident)
        with self._mutex:
            connection = self._all.get(key)
            if connection is None:
                network = opened.family != socket.AF_UNIX
                connection = Connection(hello.address, hello.ident, self._dispatch, network=network)
                self._all[key] = connection
            flow = Flow(opened, self.loop, connection.on_frame, partial(self._flow_lost, connection))
            connection.flows.append(flow)
            connection.order.append(hello.index)
            if hello.index == 0 and hello.address.uid != self.uid:
                # The first one is kept: messages must not change over from one connection to another.
                self._connections.setdefault(hello.address.uid, connection)
        connection.sort_flows()
        self.loop.add(flow)

    def _flow_lost(self, connection: Connection, flow: Flow, reason: str) -> None:
        if connection.lost is None and flow is not connection.flows[0]:
            connection.control.drain()  # It may hold a goodbye.
        if connection.lost is not None:
            return
        peer = connection.peer
        text = connection.goodbye if connection.goodbye is not None else f"{peer.label} is lost: {reason}."
        connection.lost = text
        with self._mutex:
            self._all = {key: other for key, other in self._all.items() if other is not connection}
            if self._connections.get(peer.uid) is connection:
                del self._connections[peer.uid]
            if connection.goodbye is None or connection.goodbye:
                if peer.uid != self.uid and not self.closed:
                    self._lost.setdefault(peer.uid, text)
        connection.close(reason)
        for block in connection.lent:
            self.pool.free(block, retire=True)
        self.pass_on(sorted(connection.leased), retire=True)
        for callback in self._on_lost:
            callback(connection, text or f"{peer.label} disconnected.")
        self.arenas.drop(self.arenas.owned_by(peer.uid))

    def _say_goodbye(self, connection: Connection, reason: str, timeout: float) -> None:
        if self.loop.in_thread() or not connection.flows:
            connection.post(("bye", reason))
            return
        try:
            connection.send(("bye", reason), deadline=time.monotonic() + timeout)
        except (FlowLost, TimeoutError):
            pass  # It is gone, or does not read.

    def _end_all(self, uid: str, reason: str, ended: threading.Event) -> None:
        for connection in self.connections_of(uid):
            if reason == "disconnected":
                connection.goodbye = ""
            connection.close(reason)
        ended.set()

    def _end_everything(self, ended: threading.Event) -> None:
        for listener in self._listeners:
            listener.close()
        for connection in list(self._all.values()):
            connection.goodbye = f"The endpoint of {self.config.name} is closed."
            connection.close("closed")
        ended.set()

    # ----------------------------------------------------------------- shared memory
    def view(self, connection: Connection, segment: Segment, arena: ForeignArena) -> memoryview:
        """Return a payload of another process; its owner is told when the last tensor made of it dies."""
        view = arena.view(segment.offset, segment.size)
        finalizer = weakref.finalize(view, self._release_soon, connection, segment.lease)
        finalizer.atexit = False
        return view

    def release(self, connection: Connection, segment: Segment) -> None:
        """Give back a payload that was not looked at."""
        self._release_soon(connection, segment.lease)

    def keep_trimmed(self) -> None:
        """See to it that arenas which are idle are given back; called by whoever allocates."""
        if not self._trimming:
            self._trimming = True
            self.loop.call_soon(self._trim_later)

    def _release_soon(self, connection: Connection, lease: tuple[str, int]) -> None:
        # Runs in finalizers, whichever thread they run in: no lock may be taken here.
        self.loop.call_soon(partial(connection.post, ("release", [lease], False)))

    def _take_release(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, _: Segments) -> None:
        _, leases, retire, _ = message
        self.pass_on([tuple(lease) for lease in leases], retire=retire)
        connection.leased.difference_update(tuple(lease) for lease in leases)

    def pass_on(self, leases: Sequence[tuple[str, int]], *, retire: bool) -> None:
        """Free the blocks that are this process' own, and tell the owners of the others."""
        for uid, block in leases:
            if uid == self.uid:
                self.pool.free(block, retire=retire)
                for connection in list(self._all.values()):
                    connection.lent.discard(block)
                continue
            for connection in self.connections_of(uid)[:1]:
                connection.post(("release", [(uid, block)], retire))

    def _take_drop(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, _: Segments) -> None:
        keys = [tuple(key) for key in message[1]]
        self.arenas.drop(keys)
        self.announce_drop(keys)

    def announce_drop(self, keys: Sequence[Any]) -> None:
        """Tell the processes that know arenas that these are gone; in the loop's thread."""
        for connection in list(self._all.values()):
            known = [key for key in keys if key in connection.known]
            if known:
                connection.known.difference_update(known)
                connection.post(("drop", known))

    def _trim_later(self) -> None:
        self.loop.call_at(time.monotonic() + _TRIM_S, self._trim)

    def _trim(self) -> None:
        self.announce_drop([arena.key for arena in self.pool.trim()])
        if self.pool.held_bytes:
            self._trim_later()
        else:
            self._trimming = False

    # ----------------------------------------------------------------- receiving
    def _dispatch(
        self, connection: Connection, message: tuple[Any, ...], payload: Buffer, descriptors: list[int]
    ) -> None:
        segments = self.arenas.take_up(message[-1], descriptors)
        self._handlers[message[0]](connection, message, payload, segments)

    def _take_bye(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, _: Segments) -> None:
        connection.goodbye = str(message[1])

    def _listen(self) -> tuple[list[Listener], int]:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        remote = socket.socket(socket.AF_INET6 if ":" in self.config.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            local.bind(self._path)
            remote.bind((self.config.host, 0))
            for listener in (local, remote):
                listener.listen(_BACKLOG)
        except OSError as error:
            local.close()
            remote.close()
            self.loop.stop()
            raise TransportError(
                f"{self.config.name} cannot listen at {self._path} and {self.config.host}: {error}"
            ) from error
        port = int(remote.getsockname()[1])
        return [Listener(s, self.loop, self.config.secret, self._greeted) for s in (local, remote)], port

    def _start_listening(self) -> None:
        for listener in self._listeners:
            self.loop.add(listener)
