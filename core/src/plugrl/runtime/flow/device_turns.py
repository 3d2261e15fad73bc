"""A worker's turns on its devices: it waits for its data, then for the devices, and its state comes and goes by itself.

:meth:`plugrl.runtime.worker.Worker.device` is the way in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from plugrl.errors import PlugRLError, RuntimeTimeout
from plugrl.runtime import trace
from plugrl.runtime.flow.device_home import HOME, LEAVING, TurnRequest
from plugrl.runtime.transport.address import parse_address
from plugrl.runtime.transport.connection import Connection
from plugrl.runtime.transport.endpoint import Endpoint
from plugrl.runtime.transport.hub import Segments
from plugrl.runtime.transport.pending import Pending
from plugrl.runtime.transport.requests import Requests
from plugrl.runtime.transport.wire import Buffer

_GRACE_S = 5.0


class Movable(Protocol):
    """State that lies on a device while it is used."""

    def onload(self) -> None:
        """Bring it to the device."""
        ...

    def offload(self) -> None:
        """Take it away."""
        ...


class DeviceTurns:
    """The turns of one process.

    Args:
        endpoint: of this process.
        home: finds the address of the endpoint that keeps the devices.
        devices: those that this process uses.
    """

    def __init__(self, endpoint: Endpoint, home: Callable[[], str], devices: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._home = home
        self._devices = tuple(sorted(set(devices)))
        self._moving = threading.Lock()
        self._state: tuple[Movable, ...] = ()
        self._mine = threading.RLock()
        self._depth = 0
        endpoint.requests.serve(LEAVING, self)

    @contextmanager
    def turn(
        self,
        state: Sequence[Movable] = (),
        *,
        need_mib: int = 0,
        after: Iterable[Pending[Any]] = (),
        timeout: float | None = 60.0,
    ) -> Iterator[None]:
        """Hold the devices while the block runs, with ``state`` there. May be nested within its own thread.

        Args:
            state: what is to be there; it stays after the block until somebody else needs the room.
            need_mib: memory that it takes on each device, work included.
            after: what the block works on; the devices are asked for when all of it is there, so that whoever makes it
                is never kept from them.
            timeout: seconds for data and devices together; None waits for ever.

        Raises:
            RuntimeTimeout: names who holds the devices. DeviceMemoryError: the memory is more than a device has.
            PeerLostError: the driver is gone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for pending in after:
            pending.wait(_left(deadline))
        if not self._mine.acquire(timeout=-1 if timeout is None else _left(deadline) or 0):
            raise RuntimeTimeout(f"Another thread of {self._endpoint.config.name} holds its devices.")
        try:
            self._depth += 1
            if self._depth > 1:
                self._bring(tuple(state), stayed=True)
                yield
                return
            connection = self._endpoint.hub.connection(parse_address(self._home()), deadline)
            try:
                stayed = self._ask(connection, TurnRequest(self._devices, need_mib, _left(deadline)))
                self._bring(tuple(state), stayed)
                yield
            finally:
                # Also after an answer that came too late.
                self._endpoint.requests.notify(connection, HOME, self._devices)
        finally:
            self._depth -= 1
            self._mine.release()

    # ----------------------------------------------------------------- asked to leave, in the loop's thread
    def on_request(self, connection: Connection, ident: int, body: Any, payload: Buffer, segments: Segments) -> None:
        """Take the state off the devices, which are somebody else's now."""
        threading.Thread(target=self._leave, args=(connection, ident), name="off-loading", daemon=True).start()

    def on_notice(self, connection: Connection, body: Any) -> None:
        """Nothing is told without an answer."""

    def on_lost(self, connection: Connection) -> None:
        """The end of a connection changes nothing here."""

    # ----------------------------------------------------------------- details
    def _ask(self, connection: Connection, request: TurnRequest) -> bool:
        def make(ident: int) -> Pending[Any]:
            return Pending(f"{self._endpoint.config.name} to get device {', '.join(map(str, self._devices))}")

        pending = self._endpoint.requests.ask(connection, HOME, request, make)
        return bool(pending.wait(None if request.timeout_s is None else request.timeout_s + _GRACE_S).body)

    def _bring(self, state: tuple[Movable, ...], stayed: bool) -> None:
        with self._moving:
            there = {id(one) for one in self._state} if stayed else set()
            for one in state:
                if id(one) not in there:
                    with trace.span("onload", component=self._endpoint.config.name):
                        one.onload()
            kept = [one for one in self._state if stayed and all(one is not other for other in state)]
            self._state = (*kept, *state)

    def _leave(self, connection: Connection, ident: int) -> None:
        error: PlugRLError | None = None
        with self._moving:
            try:
                while self._state:
                    with trace.span("offload", component=self._endpoint.config.name):
                        self._state[-1].offload()
                    self._state = self._state[:-1]
            except Exception as problem:  # What a worker's own state raises; whoever waits for the room is told.
                error = PlugRLError(f"{self._endpoint.config.name} could not be off-loaded: {problem}")
        self._endpoint.hub.loop.call_soon(partial(Requests.reply, connection, ident, None, error=error))


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
