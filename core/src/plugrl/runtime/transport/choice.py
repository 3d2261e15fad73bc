"""Which way a payload goes: the cheapest of those that can carry it between the two endpoints, with the reason."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from plugrl.errors import TransportError
from plugrl.runtime.transport.address import Address
from plugrl.runtime.transport.codec import Export


@dataclass(frozen=True, kw_only=True)
class PayloadSpec:
    """What is to be carried.

    Attributes:
        size: bytes of all tensors and arrays.
        device_types: types of the devices that the tensors are on, as torch calls them.
        inline_bytes: what may travel within a message.
        strict_device: another device counts as another node.
        memory: why shared memory is not to be had, empty when it is.
    """

    size: int
    device_types: tuple[str, ...] = ()
    inline_bytes: int = 64 * 2**10
    strict_device: bool = False
    memory: str = ""

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


class Network(Transport):
    """Through sockets of its own."""

    name = "net"
    reason = "nothing nearer: sockets"

    def can(self, source: Address, target: Address, spec: PayloadSpec) -> float | None:
        """Between any two processes."""
        return None if source.uid == target.uid else 150.0 + spec.size / 1e3


ASKED_FOR = "asked for"
LOCAL, INLINE, SHARED_MEMORY, NETWORK = Local(), Inline(), SharedMemory(), Network()
_transports: list[Transport] = [LOCAL, INLINE, SHARED_MEMORY, NETWORK]


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
                f"Possible: {', '.join(sorted(possible))}."
            )
        return Choice(possible[wanted][1], ASKED_FOR, possible[wanted][0])
    cost, transport = min(possible.values(), key=lambda row: row[0])
    reason = transport.reason
    if transport is NETWORK and spec.memory and near(source, target, spec):
        reason = f"no shared memory: {spec.memory}"
    return Choice(transport, reason, cost)
