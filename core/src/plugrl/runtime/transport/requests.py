"""Requests to services of other processes, and their replies, which may come in any order."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from plugrl.errors import PeerLostError, PlugRLError, TransportError
from plugrl.runtime.transport.connection import Connection, Segment
from plugrl.runtime.transport.hub import Hub, Segments
from plugrl.runtime.transport.pending import Pending
from plugrl.runtime.transport.wire import Buffer, FlowLost

_NOTICE_S = 0.5


@dataclass(frozen=True)
class Reply:
    """The answer to a request; ``segments`` are its payloads in shared memory."""

    connection: Connection
    ident: int
    body: Any
    payload: Buffer
    segments: Segments


class Service(Protocol):
    """Something that other processes ask. All methods run in the loop's thread and must not wait."""

    def on_request(self, connection: Connection, ident: int, body: Any, payload: Buffer, segments: Segments) -> None:
        """Take a request, to be answered now or later by :meth:`Requests.reply`."""
        ...

    def on_notice(self, connection: Connection, body: Any) -> None:
        """Take what needs no answer."""
        ...

    def on_lost(self, connection: Connection) -> None:
        """Take note that a connection has ended."""
        ...


class Requests:
    """Both sides of requests on the connections of a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._mutex = threading.Lock()
        self._open: dict[int, tuple[Pending[Any], Connection]] = {}
        self._services: dict[str, Service] = {}
        self._numbers = itertools.count(1)
        hub.on("request", self._take_request)
        hub.on("reply", self._take_reply)
        hub.on("notice", self._take_notice)
        hub.on_lost(self._lost)

    def serve(self, name: str, service: Service) -> None:
        """Let other processes ask ``service`` under a name."""
        self._services[name] = service

    def ask(
        self,
        connection: Connection,
        service: str,
        body: Any,
        make: Callable[[int], Pending[Any]],
        *,
        payload: Sequence[Buffer] = (),
        segments: Sequence[tuple[Segment, int]] = (),
        deadline: float | None = None,
    ) -> Pending[Any]:
        """Send a request and return what ``make`` made for its number; it is resolved with a :class:`Reply`.

        Raises PeerLostError and RuntimeTimeout when the request could not be sent.
        """
        ident = next(self._numbers)
        pending = make(ident)
        with self._mutex:
            self._open[ident] = (pending, connection)
        try:
            if connection.lost is not None:
                raise FlowLost(connection.lost)
            connection.send(("request", ident, service, body), payload, segments, deadline)
        except FlowLost as error:
            self._forget(ident)
            raise PeerLostError(f"{pending.what}: {connection.peer.label} is lost: {error}.") from None
        except BaseException:
            self._forget(ident)
            raise
        return pending

    def notify(self, connection: Connection, service: str, body: Any) -> None:
        """Tell a service something that has no answer. Never waits long; silent when the other end is gone."""
        try:
            connection.send(("notice", service, body), deadline=time.monotonic() + _NOTICE_S)
        except (FlowLost, TimeoutError):
            self.notify_soon(connection, service, body)

    def notify_soon(self, connection: Connection, service: str, body: Any) -> None:
        """Do the same from the loop's thread; takes no lock, and may be called from finalizers."""
        self._hub.loop.call_soon(partial(connection.post, ("notice", service, body)))

    @staticmethod
    def reply(
        connection: Connection,
        ident: int,
        body: Any,
        payload: Sequence[Buffer] = (),
        segments: Sequence[tuple[Segment, int]] = (),
        error: PlugRLError | None = None,
    ) -> None:
        """Answer a request, in the loop's thread."""
        connection.post(("reply", ident, error, body), payload, segments)

    def _forget(self, ident: int) -> tuple[Pending[Any], Connection] | None:
        with self._mutex:
            return self._open.pop(ident, None)

    def _take_request(
        self, connection: Connection, message: tuple[Any, ...], payload: Buffer, segments: Segments
    ) -> None:
        _, ident, name, body, _ = message
        service = self._services.get(name)
        if service is None:
            error = TransportError(f"{self._hub.place.label} has no service {name!r}.")
            self.reply(connection, ident, None, error=error)
            return
        service.on_request(connection, ident, body, payload, segments)

    def _take_notice(self, connection: Connection, message: tuple[Any, ...], payload: Buffer, _: Segments) -> None:
        _, name, body, _ = message
        if name in self._services:
            self._services[name].on_notice(connection, body)

    def _take_reply(
        self, connection: Connection, message: tuple[Any, ...], payload: Buffer, segments: Segments
    ) -> None:
        _, ident, error, body, _ = message
        found = self._forget(ident)
        if found is None:
            return
        if error is not None:
            found[0].fail(error)
        else:
            # One that was cancelled has told the service so, which takes back what it sent.
            found[0].resolve(Reply(connection, ident, body, payload, segments))

    def _lost(self, connection: Connection, reason: str) -> None:
        with self._mutex:
            gone = [ident for ident, (_, other) in self._open.items() if other is connection]
            failed = [self._open.pop(ident)[0] for ident in gone]
        for pending in failed:
            pending.fail(PeerLostError(f"{pending.what}: {reason}"))
        for service in self._services.values():
            service.on_lost(connection)
