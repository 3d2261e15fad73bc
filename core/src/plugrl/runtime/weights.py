"""Weights from one sender to many receivers: in buckets, with a version, and with an end to every wait.

On one node the bytes go through shared memory that has no name anywhere (its descriptor is passed over a Unix socket),
so nothing can be left behind, and the death of either end shows at the other at once. Receivers on other nodes get the
buckets through Ray's object store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.buckets import ALIGNMENT, Piece, Unpacker, pack
from plugrl.runtime.memory_link import MemoryInlet, MemoryOutlet
from plugrl.runtime.store_link import StoreInlet, StoreOutlet

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup

MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class WeightRoute:
    """How the weights of one sender reach its receivers; made by :func:`weight_route`, given to the workers.

    remote: the receivers that do not share the sender's node; they need ``mailbox``, a Ray actor.
    timeout_s: seconds that one side waits for the next sign of life of the other.
    """

    name: str
    directory: str
    receivers: int
    remote: tuple[int, ...] = ()
    mailbox: Any = None
    bucket_bytes: int = 256 * MEGABYTE
    timeout_s: float = 120.0

    @property
    def local(self) -> tuple[int, ...]:
        """The receivers on the sender's node."""
        return tuple(index for index in range(self.receivers) if index not in self.remote)

    @property
    def socket_path(self) -> str:
        """Where sender and receivers of one node meet."""
        return str(Path(self.directory) / f"{self.name}.sock")


def weight_route(
    sender: WorkerGroup,
    receivers: WorkerGroup,
    *,
    bucket_megabytes: int = 256,
    timeout_s: float = 120.0,
    sender_rank: int = 0,
    shared_memory: bool = True,
) -> WeightRoute:
    """Return the route from one rank of a group to every rank of another; receiver ``i`` is rank ``i``.

    ``shared_memory=False`` sends everything through the object store.
    """
    home = sender.seats[sender_rank].node.node_id
    remote = tuple(rank for rank, seat in enumerate(receivers.seats) if not shared_memory or seat.node.node_id != home)
    mailbox = None
    if remote:
        from plugrl.runtime.mailbox import start_mailbox

        mailbox = start_mailbox(receivers.size)
    return WeightRoute(
        name=f"{sender.name}{sender.generation}-{receivers.name}{receivers.generation}"[:40],
        directory=str(sender.session.run_directory),
        receivers=receivers.size,
        remote=remote,
        mailbox=mailbox,
        bucket_bytes=bucket_megabytes * MEGABYTE,
        timeout_s=timeout_s,
    )


class WeightSender:
    """The one end that has the weights. Connections and memory stay for the next transfer."""

    def __init__(self, route: WeightRoute) -> None:
        self.route = route
        self.version = -1
        size = -(-route.bucket_bytes // ALIGNMENT) * ALIGNMENT
        self._size = size
        self._memory = MemoryOutlet(route.socket_path, route.local, size, route.timeout_s) if route.local else None
        self._store = StoreOutlet(route.mailbox, route.remote, route.timeout_s) if route.remote else None
        self._private: torch.Tensor | None = None

    def send(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> int:
        """Send all tensors to every receiver and return how many there were, once all receivers have them.

        Args:
            tensors: names with full tensors on any device, taken from the iterator as buckets have room.
            version: a number that never falls.

        Raises:
            WeightSyncError: a receiver died, refused or did not answer for ``timeout_s``; the others are told, and the
                next call starts afresh. What the iterator raises is raised as it is, after telling the receivers.
        """
        if version < self.version:
            raise WeightSyncError(f"Weights of version {version} after version {self.version}: versions never fall.")
        outlets = [outlet for outlet in (self._memory, self._store) if outlet is not None]
        try:
            for outlet in outlets:
                outlet.begin(version)
            count = pack(tensors, self._size, self._next_buffer, self._publish)
            for outlet in outlets:
                outlet.end(count)
        except BaseException as error:
            for outlet in outlets:
                outlet.abort(f"{type(error).__name__}: {error}")
            raise
        self.version = version
        return count

    def close(self) -> None:
        """Drop connections and memory."""
        if self._memory is not None:
            self._memory.close()

    def _next_buffer(self) -> torch.Tensor:
        if self._memory is not None:
            self._buffer = self._memory.next_buffer()
        else:
            if self._private is None:
                self._private = torch.empty(self._size, dtype=torch.uint8)
            self._buffer = self._private
        return self._buffer

    def _publish(self, pieces: list[Piece], used: int) -> None:
        header = [piece.to_list() for piece in pieces]
        if self._store is not None:
            self._store.publish(header, self._buffer[:used])
        if self._memory is not None:
            self._memory.publish(header)


class WeightReceiver:
    """One of the ends that get the weights."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        self.route = route
        self.index = index
        self.version = -1
        self._inlet: MemoryInlet | StoreInlet
        if index in route.remote:
            self._inlet = StoreInlet(route.mailbox, index, route.timeout_s)
        else:
            self._inlet = MemoryInlet(route.socket_path, index, route.timeout_s)

    def receive(self, version: int, *, copy: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names and tensors (on the host) of ``version`` as they come.

        Without ``copy`` a tensor is only good until the next one is taken; that suits a consumer which copies each
        tensor into a parameter of its own and saves one copy.

        Raises:
            WeightSyncError: the sender died, gave up, sent another version or nothing for ``timeout_s``. What was
                yielded until then is part of a whole that never came: it must not be used.
        """
        unpacker = Unpacker(copy)
        try:
            self._inlet.begin(version)
            for header, buffer in self._inlet.buckets():
                yield from unpacker.unpack(map(Piece.from_list, header), buffer)
            expected = self._inlet.expected
            if unpacker.count != expected:
                raise WeightSyncError(f"{unpacker.count} of {expected} tensors came; the weights are not whole.")
            self._inlet.confirm()
        except BaseException as error:
            self._inlet.abort(f"{type(error).__name__}: {error}")
            raise
        self.version = version

    def close(self) -> None:
        """Drop the connection."""
        self._inlet.close()
