"""Who may use which devices now: locks in the order of asking, several devices at once or none.

An owner is anything hashable: a component of the driver's flow, or a worker in another process. One that dies frees its
devices and its place in the line; the locks ask ``is_alive`` while anybody waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from plugrl.errors import PlugRLError, RuntimeTimeout
from plugrl.runtime.cancellation import raise_if_cancelled

Device = int | str
"""A device as its users call it: a number, or a name that is unique in the run."""

_TICK_S = 0.25
"""How often a waiting thread looks whether owners are alive, and whether it was cancelled."""


@dataclass
class _Request:
    owner: Hashable
    devices: tuple[Device, ...]
    ready: Callable[[], bool] | None
    since: float = field(default_factory=time.monotonic)


class DeviceLocks:
    """Locks of devices, for any number of threads.

    Rules: an owner gets all the devices it asks for, or waits without holding any of them, so that owners that ask in
    different orders never block each other. Who asked first is served first: a later request for a device passes only
    where the earlier one does not want it, or still waits for data. An owner may ask again for what it holds: the
    devices are free when it has released as often as it acquired.
    """

    def __init__(self, is_alive: Callable[[Hashable], bool] | None = None) -> None:
        self._is_alive = is_alive
        self._changed = threading.Condition()
        self._held: dict[Device, tuple[Hashable, int]] = {}
        self._line: list[_Request] = []

    def acquire(
        self,
        owner: Hashable,
        devices: Sequence[Device],
        timeout: float | None = 60.0,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        """Wait until the devices are the owner's.

        Args:
            owner: who asks. Further devices while it holds some are refused: ask for all of them at once.
            devices: any order; those that the owner holds already are counted once more.
            timeout: seconds; None waits for ever, 0 not at all.
            ready: says whether the data that the owner is to work on are there; until then the request keeps its place
                in the line but blocks nobody, so that a consumer never keeps its producer from a device.

        Raises:
            RuntimeTimeout: names the holders. CallCancelled: the scope of the thread was cancelled.
            PlugRLError: the owner holds other devices.
        """
        wanted = tuple(sorted(set(devices), key=str))
        with self._changed:
            held = self._devices_of(owner)
            if held:
                if not set(wanted) <= set(held):
                    raise PlugRLError(f"{owner} holds device {_text(held)} and cannot ask for {_text(wanted)} besides.")
                self._count(owner, wanted, 1)
                return
            request = _Request(owner, wanted, ready)
            self._line.append(request)
            try:
                self._wait(request, timeout)
            finally:
                self._line.remove(request)
                self._changed.notify_all()
            self._count(owner, wanted, 1)

    def release(self, owner: Hashable, devices: Sequence[Device]) -> None:
        """Give back what was acquired once; devices that the owner does not hold any longer are passed over."""
        with self._changed:
            self._count(owner, [device for device in set(devices) if self._holder(device) == owner], -1)
            self._changed.notify_all()

    def release_owner(self, owner: Hashable) -> None:
        """Free all devices of an owner, however often it acquired them."""
        with self._changed:
            for device in self._devices_of(owner):
                del self._held[device]
            self._changed.notify_all()

    @contextmanager
    def holding(
        self,
        owner: Hashable,
        devices: Sequence[Device],
        timeout: float | None = 60.0,
        ready: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Hold the devices while the block runs, see :meth:`acquire`."""
        self.acquire(owner, devices, timeout, ready)
        try:
            yield
        finally:
            self.release(owner, devices)

    def waiting(self, device: Device) -> list[Hashable]:
        """Return who waits for a device, first come first."""
        with self._changed:
            return [request.owner for request in self._line if device in request.devices]

    def holder(self, device: Device) -> Hashable | None:
        """Return who holds a device."""
        with self._changed:
            return self._holder(device)

    # ----------------------------------------------------------------- details
    def _wait(self, request: _Request, timeout: float | None) -> None:
        deadline = None if timeout is None else request.since + timeout
        while not self._may_have(request):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeTimeout(self._explain(request, timeout or 0))
            self._changed.wait(_TICK_S if left is None else min(_TICK_S, left))
            raise_if_cancelled()
            self._bury()

    def _may_have(self, request: _Request) -> bool:
        if request.ready is not None and not request.ready():
            return False
        if any(device in self._held for device in request.devices):
            return False
        for other in self._line:
            if other is request:
                return True
            if set(other.devices) & set(request.devices) and (other.ready is None or other.ready()):
                return False
        return True

    def _bury(self) -> None:
        """Free the devices of owners that died."""
        if self._is_alive is None:
            return
        dead = {owner for owner, _ in self._held.values() if not self._is_alive(owner)}
        if dead:
            self._held = {device: entry for device, entry in self._held.items() if entry[0] not in dead}
            self._changed.notify_all()

    def _holder(self, device: Device) -> Hashable | None:
        entry = self._held.get(device)
        return None if entry is None else entry[0]

    def _devices_of(self, owner: Hashable) -> list[Device]:
        return sorted((device for device, (holder, _) in self._held.items() if holder == owner), key=str)

    def _count(self, owner: Hashable, devices: Sequence[Device], change: int) -> None:
        for device in devices:
            times = self._held.get(device, (owner, 0))[1] + change
            if times > 0:
                self._held[device] = (owner, times)
            else:
                self._held.pop(device, None)

    def _explain(self, request: _Request, timeout: float) -> str:
        parts = [f"{self._holder(device)} holds device {device}" for device in request.devices if device in self._held]
        ahead = [str(other.owner) for other in self._line[: self._line.index(request)]]
        text = f"{request.owner} did not get device {_text(request.devices)} within {timeout:g} s"
        if request.ready is not None and not request.ready():
            return f"{text}: its data are not there."
        return f"{text}: {'; '.join(parts) or 'before it in the line: ' + ', '.join(ahead)}."


def _text(devices: Sequence[Device]) -> str:
    return ", ".join(map(str, devices))
