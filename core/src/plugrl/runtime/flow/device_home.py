"""Who of the workers may use which devices now, and whose memory lies there: kept in the driver's process.

The locks are :class:`DeviceLocks`. What a worker has on a device stays after its turn; it is asked to leave when the
turn of another one comes whose memory does not fit beside it, the one used longest ago first. A worker that dies frees
its devices, its place in the line and its memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from plugrl.errors import PeerLostError, PlugRLError
from plugrl.runtime.flow.locks import DeviceLocks
from plugrl.runtime.flow.residency import DeviceMemoryError
from plugrl.runtime.transport.connection import Connection
from plugrl.runtime.transport.endpoint import Endpoint
from plugrl.runtime.transport.hub import Segments
from plugrl.runtime.transport.pending import Pending
from plugrl.runtime.transport.requests import Requests
from plugrl.runtime.transport.wire import Buffer

HOME = "devices"
LEAVING = "devices.leave"
_LEAVE_S = 120.0


@dataclass(frozen=True)
class TurnRequest:
    """What a worker asks for: ``need_mib`` on each of the devices, ``timeout_s`` seconds at most (None: no limit)."""

    devices: tuple[str, ...]
    need_mib: int
    timeout_s: float | None


@dataclass(frozen=True)
class _Owner:
    uid: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass
class _Guest:
    """A worker with memory on devices."""

    connection: Connection
    devices: tuple[str, ...]
    need_mib: int
    used: int = 0


class DeviceHome:
    """Gives turns to the workers that ask, one thread for each that waits.

    Args:
        endpoint: of this process; workers ask it.
        budget_mib: memory of each device; None where everything fits.
    """

    def __init__(self, endpoint: Endpoint, budget_mib: int | None) -> None:
        self._endpoint = endpoint
        self._budget = budget_mib
        self._mutex = threading.Lock()
        self._lost: set[str] = set()
        self._guests: dict[_Owner, _Guest] = {}
        self._clock = 0
        self.locks = DeviceLocks(lambda owner: not isinstance(owner, _Owner) or owner.uid not in self._lost)
        endpoint.requests.serve(HOME, self)

    # ----------------------------------------------------------------- called in the loop's thread
    def on_request(self, connection: Connection, ident: int, body: Any, payload: Buffer, segments: Segments) -> None:
        """Take a TurnRequest; the answer comes with the turn, and says whether the worker's state is still there."""
        threading.Thread(
            target=self._serve, args=(connection, ident, body), name=f"turn of {connection.peer.name}", daemon=True
        ).start()

    def on_notice(self, connection: Connection, body: Any) -> None:
        """The turn of a worker is over; ``body`` are its devices."""
        self.locks.release(_owner(connection), body)

    def on_lost(self, connection: Connection) -> None:
        """A worker is gone, and with it what it had."""
        owner = _owner(connection)
        with self._mutex:
            self._lost.add(owner.uid)
            self._guests.pop(owner, None)
        self.locks.release_owner(owner)

    # ----------------------------------------------------------------- in a thread of the request
    def _serve(self, connection: Connection, ident: int, request: TurnRequest) -> None:
        owner = _owner(connection)
        error: PlugRLError | None = None
        stayed = False
        try:
            self.locks.acquire(owner, request.devices, request.timeout_s, ready=partial(self._is_there, owner))
            try:
                stayed = self._welcome(owner, connection, request)
            except PlugRLError:
                self.locks.release(owner, request.devices)
                raise
        except PlugRLError as problem:
            error = problem
        reply = partial(Requests.reply, connection, ident, stayed, error=error)
        self._endpoint.hub.loop.call_soon(reply)

    def _is_there(self, owner: _Owner) -> bool:
        if owner.uid in self._lost:
            raise PeerLostError(f"{owner} is gone.")
        return True

    def _welcome(self, owner: _Owner, connection: Connection, request: TurnRequest) -> bool:
        """Make room, note who is there now, and return whether it had been there all along."""
        with self._mutex:
            before = self._guests.get(owner)
        for device in request.devices:
            self._make_room(owner, device, request.need_mib)
        with self._mutex:
            self._clock += 1
            stayed = self._guests.get(owner) is before is not None
            self._guests[owner] = _Guest(connection, request.devices, request.need_mib, self._clock)
        return stayed

    def _make_room(self, owner: _Owner, device: str, need_mib: int) -> None:
        if self._budget is None:
            return
        if need_mib > self._budget:
            raise DeviceMemoryError(
                f"cluster.device_memory_mib: device {device} has {self._budget} MiB, and {owner} needs {need_mib} MiB."
            )
        while True:
            with self._mutex:
                others = [(guest.used, other) for other, guest in self._guests.items()
                          if other != owner and device in guest.devices]  # fmt: skip
                taken = sum(self._guests[other].need_mib for _, other in others)
                if need_mib + taken <= self._budget:
                    return
                _, leaving = min(others, key=lambda row: row[0])
                guest = self._guests.pop(leaving)
            self._ask_to_leave(leaving, guest)

    def _ask_to_leave(self, owner: _Owner, guest: _Guest) -> None:
        def make(ident: int) -> Pending[Any]:
            return Pending(f"{owner} to leave device {', '.join(guest.devices)}")

        try:
            self._endpoint.requests.ask(guest.connection, LEAVING, None, make).wait(_LEAVE_S)
        except PeerLostError:
            pass  # Its memory went with it.
        except PlugRLError:
            with self._mutex:
                self._guests.setdefault(owner, guest)  # It is still there.
            raise


def _owner(connection: Connection) -> _Owner:
    return _Owner(connection.peer.uid, connection.peer.name)
