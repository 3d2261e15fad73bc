"""Which way a payload goes: the cheapest of those that can carry it between the two endpoints, with the reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from plugrl.errors import TransportError
from plugrl.runtime.transport.address import Address
from plugrl.runtime.transport.codec import Export
from plugrl.runtime.transport.device_paths import DevicePaths, Packing, share


@dataclass(frozen=True, kw_only=True)
class PayloadSpec:
    """What is to be carried.

    Attributes:
        size: bytes of all tensors and arrays.
        device_types: types of the devices that the tensors are on, as torch calls them.
        inline_bytes: what may travel within a message.
        strict_device: another device counts as another node.
        memory: why shared memory is not to be had, empty when it is.
        paths: what the devices of the sender offer.
    """

    size: int
    device_types: tuple[str, ...] = ()
    inline_bytes: int = 64 * 2**10
    strict_device: bool = False
    memory: str = ""
    paths: DevicePaths = DevicePaths()

    @property
    def on_device(self) -> bool:
        """Whether a tensor is on a device other than the host."""
        return any(kind != "cpu" for kind in self.device_types)


@dataclass(frozen=True)
class Choice:
    """The way that was chosen and why; ``cost_us`` is an estimate of the time it takes."""

    transport: Transport
    reason: str
    cost_us: float


class Transport(ABC):
    """One way between two processes.

    A way for tensors of devices (handles of a platform, or its collectives) overrides :meth:`export`; one that does not
    is given their bytes on the host.
    """

    name: ClassVar[str]
    reason: ClassVar[str]

    @abstractmethod
    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """Return the estimated time in microseconds, None when this way does not exist between the two."""

    host_memory: ClassVar[bool] = False
    """Whether what is on the host goes through shared memory when it is large."""

    def export(self) -> Export | None:
        """Return how tensors of devices travel without a detour through the host, None when they cannot."""
        return None


def near(source: Address, target: Address, spec: PayloadSpec) -> bool:
    """Whether two endpoints may share memory: one node and, where devices count strictly, one device."""
    return source.node == target.node and not (spec.strict_device and source.device != target.device)


class Local(Transport):
    """The same process."""

    name = "local"
    reason = "same process: by reference"

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """Nothing to carry, within one process."""
        return 0.0 if source.uid == target.uid else None


class Inline(Transport):
    """Within the message."""

    name = "inline"
    reason = "small: within the message"

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """For small payloads."""
        if source.uid == target.uid or spec.size > spec.inline_bytes:
            return None
        return 20.0 + spec.size / 2e3


class SharedMemory(Transport):
    """One copy into memory that the other process maps."""

    name = "shm"
    reason = "same node: shared memory, one copy"
    host_memory = True

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """Where both ends share memory."""
        if source.uid == target.uid or not near(source, target, spec) or spec.memory:
            return None
        return 60.0 + spec.size / 8e3


class DeviceHandles(Transport):
    """A handle of device memory, copied on the device by the receiver."""

    name = "ipc"
    reason = "same device: handle of its memory, one copy there"
    host_memory = True

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """For two processes on one device whose platform shares its memory."""
        if source.uid == target.uid or not spec.on_device or not _same_device(source, target) or spec.paths.ipc:
            return None
        return 55.0 + spec.size / 1e6

    def export(self) -> Export | None:
        """Tensors travel as handles."""
        return share


class Collectives(Transport):
    """The platform's collectives, from device to device; never between two processes on one device."""

    name = "ccl"
    reason = "different devices: the platform's collectives"
    host_memory = True

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """For two devices of one platform that has collectives."""
        if source.uid == target.uid or not spec.on_device or not source.device or not target.device:
            return None
        if _same_device(source, target) or spec.paths.ccl or set(spec.device_types) - {"cpu", spec.paths.kind}:
            return None
        return 55.0 + spec.size / 2e4

    def export(self) -> Export | None:
        """Tensors travel as one message of bytes."""
        return Packing()


def _same_device(source: Address, target: Address) -> bool:
    return bool(source.device) and source.node == target.node and source.device == target.device


class Network(Transport):
    """Through sockets of its own."""

    name = "net"
    reason = "nothing nearer: sockets"

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """Between any two processes."""
        return None if source.uid == target.uid else 150.0 + spec.size / 1e3


ASKED_FOR = "asked for"
LOCAL, INLINE, SHARED_MEMORY, NETWORK = Local(), Inline(), SharedMemory(), Network()
HANDLES, COLLECTIVES = DeviceHandles(), Collectives()
_transports: list[Transport] = [LOCAL, INLINE, HANDLES, COLLECTIVES, SHARED_MEMORY, NETWORK]


def register_transport(transport: Transport) -> None:
    """Add a way, such as a platform's handles of device memory; of one name there is one, the last."""
    _transports[:] = [known for known in _transports if known.name != transport.name] + [transport]


def choose(source: Address, target: Address, spec: PayloadSpec, wanted: str | None = None) -> Choice:
    """Return the cheapest way, or the ``wanted`` one. Raises TransportError when that cannot carry the payload."""
    possible = {
        transport.name: (cost, transport)
        for transport in _transports
        if (cost := transport.can(source, target, spec)) is not None
    }
    if wanted is not None:
        if wanted not in possible:
            raise TransportError(
                f'transport="{wanted}" cannot carry {spec.size} bytes from {source.label} to {target.label}. '
                f"Possible: {', '.join(sorted(possible))}{_why_through_host(source, target, spec)}."
            )
        return Choice(possible[wanted][1], ASKED_FOR, possible[wanted][0])
    cost, transport = min(possible.values(), key=lambda row: row[0])
    reason = transport.reason
    if transport is NETWORK and spec.memory and near(source, target, spec):
        reason = f"no shared memory: {spec.memory}"
    if transport in (SHARED_MEMORY, NETWORK):
        reason += _why_through_host(source, target, spec)
    return Choice(transport, reason, cost)


def _why_through_host(source: Address, target: Address, spec: PayloadSpec) -> str:
    """Return why tensors of devices make a detour through the host; empty where there are none."""
    if not spec.on_device:
        return ""
    problem = spec.paths.ipc if _same_device(source, target) else spec.paths.ccl
    if not problem and not target.device:
        problem = f"{target.name} has no device"
    if not problem and set(spec.device_types) - {"cpu", spec.paths.kind}:
        problem = "tensors of several kinds of devices"
    return f"; through the host: {problem}" if problem else ""
