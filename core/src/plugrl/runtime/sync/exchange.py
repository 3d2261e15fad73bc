"""Tensors in buckets to all receivers of a route at once, on this node and on others, as one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from plugrl.errors import WeightSyncError
from plugrl.platforms import get_platform
from plugrl.runtime.sync.buckets import ALIGNMENT, Piece, Unpacker, pack
from plugrl.runtime.sync.lookout import Lookout
from plugrl.runtime.sync.meeting import Message
from plugrl.runtime.sync.memory_link import MemoryInlet, MemoryOutlet
from plugrl.runtime.sync.route import MEGABYTE, WeightRoute
from plugrl.runtime.sync.source import Tensors
from plugrl.runtime.sync.store_link import StoreInlet, StoreOutlet


class Exchange:
    """The sender's end. The order is begin, send, end (send and end perhaps again), commit; or abort."""

    def __init__(self, route: WeightRoute) -> None:
        megabytes = route.options.bucket.size_megabytes
        size = route.bucket_bytes if megabytes is None else megabytes * MEGABYTE
        self._size = -(-size // ALIGNMENT) * ALIGNMENT
        self._on_device = route.options.bucket.device == "accelerator"
        lookout = Lookout(route)
        self._memory = (
            MemoryOutlet(route.socket_path, route.local, self._size, route.timeout_s, lookout) if route.local else None
        )
        self._store = StoreOutlet(route.mailbox, route.remote, route.timeout_s, lookout) if route.remote else None
        self._outlets: list[Any] = [outlet for outlet in (self._memory, self._store) if outlet is not None]
        self._private: torch.Tensor | None = None
        self._device_bucket: torch.Tensor | None = None
        self._bytes = 0

    def begin(self, message: Message) -> dict[int, Message]:
        """Announce a transfer and return the answers by receiver."""
        return self._of_all("begin", {"kind": "begin", **message})

    def send(self, tensors: Tensors) -> tuple[int, int]:
        """Send tensors; returns how many there were and their bytes."""
        self._bytes = 0
        count = pack(tensors, self._size, self._next_buffer, self._publish)
        return count, self._bytes

    def end(self, message: Message) -> dict[int, Message]:
        """Say that all was sent and return the answers by receiver."""
        return self._of_all("end", {"kind": "end", **message})

    def post(self, message: Message) -> None:
        """Send any other message to all."""
        for outlet in self._outlets:
            outlet.post(message)

    def commit(self) -> None:
        """Tell all to use what they have. Raises WeightSyncError when one is gone; the others have heard it."""
        failed: WeightSyncError | None = None
        for outlet in self._outlets:
            try:
                outlet.commit()
            except WeightSyncError as error:
                failed = error
        if failed is not None:
            raise failed

    def abort(self, reason: str) -> None:
        """Tell all that the transfer failed."""
        for outlet in self._outlets:
            outlet.abort(reason)

    def close(self) -> None:
        """Drop connections and memory."""
        for outlet in self._outlets:
            outlet.close()
        self._device_bucket = self._private = None
        self._buffer = torch.empty(0, dtype=torch.uint8)  # The last one may be a view of memory that is to go.

    def _of_all(self, method: str, message: Message) -> dict[int, Message]:
        answers: dict[int, Message] = {}
        for outlet in self._outlets:
            answers |= getattr(outlet, method)(message)
        return answers

    def _next_buffer(self) -> torch.Tensor:
        if self._memory is not None:
            self._buffer = self._memory.next_buffer()
        else:
            if self._private is None:
                self._private = torch.empty(self._size, dtype=torch.uint8)
            self._buffer = self._private
        if not self._on_device:
            return self._buffer
        if self._device_bucket is None:
            self._device_bucket = torch.empty(self._size, dtype=torch.uint8, device=get_platform().device_name)
        return self._device_bucket

    def _publish(self, pieces: list[Piece], used: int) -> None:
        if self._device_bucket is not None:
            self._buffer[:used].copy_(self._device_bucket[:used])
        self._bytes += sum(piece.length for piece in pieces)
        header = [piece.to_list() for piece in pieces]
        if self._store is not None:
            self._store.publish(header, self._buffer[:used])
        if self._memory is not None:
            self._memory.publish(header)


class Intake:
    """A receiver's end."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        self._inlet: MemoryInlet | StoreInlet
        if index in route.remote:
            self._inlet = StoreInlet(route.mailbox, index, route.timeout_s, Lookout(route))
        else:
            self._inlet = MemoryInlet(route.socket_path, index, route.timeout_s, Lookout(route))
        self.trailer: Message = {}

    def begin(self, version: int, ready: Message) -> Message:
        """Wait for the announcement of ``version``, answer what this end has, and return the announcement."""
        announced = self._inlet.begin(version)
        self._inlet.send({"kind": "ready", **ready})
        return announced

    def tensors(self, copy: bool, spare: dict[str, torch.Tensor] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what comes, then have the sender's last message in ``trailer``. Raises WeightSyncError for gaps."""
        unpacker = Unpacker(copy, spare)
        for header, buffer in self._inlet.buckets():
            yield from unpacker.unpack(map(Piece.from_list, header), buffer)
        self.trailer = self._inlet.last
        if unpacker.count != self.trailer["count"]:
            expected = self.trailer["count"]
            raise WeightSyncError(f"{unpacker.count} of {expected} tensors came; the weights are not whole.")

    def confirm(self) -> None:
        """Say that everything has come, and wait until all others have it too."""
        self._inlet.send({"kind": "whole"})
        message = self._inlet.receive()
        if message["kind"] != "commit":
            raise WeightSyncError(f"The sender sent {message['kind']!r} where the end of the transfer was expected.")

    def asks_again(self, satisfied: bool) -> bool:
        """Say that everything has come and whether it is of use; returns whether all is sent again, else it counts."""
        self._inlet.send({"kind": "whole" if satisfied else "again"})
        return self._inlet.receive()["kind"] == "again"

    def abort(self, reason: str) -> None:
        """Tell the sender that this end gives up."""
        self._inlet.abort(reason)

    def close(self) -> None:
        """Drop the connection."""
        self._inlet.close()
