"""Buckets through shared memory on one node. Two buckets alternate: one is filled while the other is read.

The memory is anonymous; receivers get its descriptor when they connect. The tokens that say "this bucket is ready" and
"I have read it" travel over the socket, whose system calls order the accesses to the memory as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.frames import Frames
from plugrl.runtime.sync.lookout import Lookout
from plugrl.runtime.sync.meeting import Message, PeerClient, PeerServer
from plugrl.runtime.sync.memory import anonymous_memory, map_shared

_SLOTS = 2


class MemoryOutlet:
    """The sender's end: listens at ``path`` and serves the receivers with the given indices."""

    def __init__(self, path: str, indices: Sequence[int], size: int, timeout: float, lookout: Lookout) -> None:
        self._size = size
        self._timeout = timeout
        self._sequence = 0
        self._read: dict[int, int] = {}
        self._descriptor = anonymous_memory(size * _SLOTS)
        self._memory: torch.Tensor | None = map_shared(self._descriptor, size * _SLOTS)
        self._server = PeerServer(path, indices, timeout, self._greet, lookout)

    def begin(self, message: Message) -> dict[int, Message]:
        """Connect the receivers that are not connected, announce a transfer and return what they answer."""
        self._server.gather()
        self._sequence = 0
        self._read = dict.fromkeys(self._server.peers, 0)
        self._server.post(message)
        return self._server.answers()

    def next_buffer(self) -> torch.Tensor:
        """Return the next bucket, uint8, once every receiver has read what was in it."""
        self._wait_read(self._sequence - _SLOTS + 1)
        assert self._memory is not None
        return _slot(self._memory, self._sequence, self._size)

    def publish(self, header: list[Any]) -> None:
        """Tell the receivers that the bucket is full."""
        self._server.post({"kind": "bucket", "sequence": self._sequence, "pieces": header})
        self._sequence += 1

    def end(self, message: Message) -> dict[int, Message]:
        """Tell the receivers that all was sent and return what they answer."""
        self._server.post(message)
        self._wait_read(self._sequence)
        return self._server.answers()

    def post(self, message: Message) -> None:
        """Send any other message to all receivers."""
        self._server.post(message)

    def commit(self) -> None:
        """Tell the receivers to use what they have."""
        self._server.commit()

    def abort(self, reason: str) -> None:
        """Tell the receivers that the transfer failed and drop the connections."""
        self._server.abort(reason)

    def close(self) -> None:
        """Drop connections, address and memory."""
        self._server.close()
        if self._memory is not None:
            os.close(self._descriptor)
        self._memory = None

    def _greet(self, peer: Frames) -> None:
        peer.send_descriptor(self._descriptor, self._timeout)
        peer.send({"kind": "memory", "size": self._size}, self._timeout)

    def _wait_read(self, sequence: int) -> None:
        for index in self._server.peers:
            while self._read[index] < sequence:
                message = self._server.answer_of(index)
                if message["kind"] != "read":
                    raise WeightSyncError(f"Receiver {index} sent {message['kind']!r} before it had read everything.")
                self._read[index] += 1


class MemoryInlet:
    """A receiver's end."""

    def __init__(self, path: str, index: int, timeout: float, lookout: Lookout) -> None:
        self._timeout = timeout
        self._client = PeerClient(path, index, timeout, self._greeted, lookout)
        self._memory: torch.Tensor | None = None
        self._size = 0

    def begin(self, version: int) -> Message:
        """Connect if need be and wait until a transfer is announced. Raises WeightSyncError for another version."""
        return self._client.begin(version)

    def buckets(self) -> Iterator[tuple[list[Any], torch.Tensor]]:
        """Yield (pieces, bytes) of each bucket, which may be filled anew when the next one is asked for.

        The message that came after the last one is in ``last``.
        """
        assert self._memory is not None
        while (message := self._client.receive())["kind"] == "bucket":
            yield message["pieces"], _slot(self._memory, message["sequence"], self._size)
            self._client.send({"kind": "read"})
        self.last = message

    def send(self, message: Message) -> None:
        """Answer the sender."""
        self._client.send(message)

    def receive(self) -> Message:
        """Return the next message that is no bucket."""
        return self._client.receive()

    def abort(self, reason: str) -> None:
        """Tell the sender that this receiver gives up, and drop the connection."""
        self._client.abort(reason)
        self._memory = None

    def close(self) -> None:
        """Drop connection and memory."""
        self._client.drop()
        self._memory = None

    def _greeted(self, peer: Frames) -> None:
        descriptor = peer.receive_descriptor(self._timeout)
        try:
            self._size = peer.receive(self._timeout)["size"]
            self._memory = map_shared(descriptor, self._size * _SLOTS)
        finally:
            os.close(descriptor)


def _slot(memory: torch.Tensor, sequence: int, size: int) -> torch.Tensor:
    start = (sequence % _SLOTS) * size
    return memory[start : start + size]
