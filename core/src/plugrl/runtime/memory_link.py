"""Buckets through shared memory on one node. Two buckets alternate: one is filled while the other is read.

The memory is anonymous; receivers get its descriptor when they connect. The tokens that say "this bucket is ready" and
"I have read it" travel over the socket, whose system calls order the accesses to the memory as well.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.frames import Closed, Frames

_SLOTS = 2
_RETRY_S = 0.02


class MemoryOutlet:
    """The sender's end: listens at ``path`` and serves the receivers with the given indices."""

    def __init__(self, path: str, indices: Sequence[int], size: int, timeout: float) -> None:
        self._path = path
        self._indices = tuple(indices)
        self._size = size
        self._timeout = timeout
        self._peers: dict[int, Frames] = {}
        self._sequence = 0
        self._acknowledged: dict[int, int] = {}
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(len(self._indices) + 8)
        self._descriptor = anonymous_memory(size * _SLOTS)
        self._memory = _map(self._descriptor, size * _SLOTS)

    def begin(self, version: int) -> None:
        """Connect the receivers that are not connected and announce a transfer."""
        for index in [index for index, peer in self._peers.items() if peer.is_closed()]:
            self._peers.pop(index).close()
        self._accept_missing()
        self._sequence = 0
        self._acknowledged = dict.fromkeys(self._indices, 0)
        for peer in self._peers.values():
            peer.send({"kind": "begin", "version": version}, self._timeout)

    def next_buffer(self) -> torch.Tensor:
        """Return the next bucket, uint8, once every receiver has read what was in it."""
        self._wait_acknowledged(self._sequence - _SLOTS + 1)
        return _slot(self._memory, self._sequence, self._size)

    def publish(self, header: list[Any]) -> None:
        """Tell the receivers that the bucket is full."""
        for peer in self._peers.values():
            peer.send({"kind": "bucket", "sequence": self._sequence, "pieces": header}, self._timeout)
        self._sequence += 1

    def end(self, count: int) -> None:
        """Tell the receivers that all ``count`` tensors were sent, and wait until all have them."""
        for peer in self._peers.values():
            peer.send({"kind": "end", "count": count}, self._timeout)
        self._wait_acknowledged(self._sequence + 1)

    def abort(self, reason: str) -> None:
        """Tell the receivers that the transfer failed and drop the connections."""
        for peer in self._peers.values():
            try:
                peer.send({"kind": "abort", "reason": reason}, 1.0)
            except WeightSyncError:
                pass  # It may be the one that died.
            peer.close()
        self._peers.clear()

    def close(self) -> None:
        """Drop connections, address and memory."""
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        self._listener.close()
        Path(self._path).unlink(missing_ok=True)
        os.close(self._descriptor)
        del self._memory

    def _accept_missing(self) -> None:
        deadline = time.monotonic() + self._timeout
        while missing := sorted(set(self._indices) - set(self._peers)):
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                names = ", ".join(map(str, missing))
                raise WeightSyncError(f"Receiver {names} did not connect within {self._timeout:g} s.") from None
            self._greet(Frames(connection, "A receiver"))

    def _greet(self, peer: Frames) -> None:
        """Take up a receiver; one that died while it waited is dropped, the next attempt will find it missing."""
        try:
            index = int(peer.receive(self._timeout)["receiver"])
            peer.peer = f"Receiver {index}"
            socket.send_fds(peer.connection, [b"m"], [self._descriptor])
            peer.send({"kind": "memory", "size": self._size}, self._timeout)
        except (Closed, OSError):
            peer.close()
            return
        stale = self._peers.pop(index, None)
        if stale is not None:
            stale.close()
        self._peers[index] = peer

    def _wait_acknowledged(self, sequence: int) -> None:
        for index, peer in self._peers.items():
            while self._acknowledged[index] < sequence:
                message = peer.receive(self._timeout)
                if message["kind"] != "read":
                    raise WeightSyncError(f"Receiver {index} gave up: {message.get('reason', message)}")
                self._acknowledged[index] += 1


class MemoryInlet:
    """A receiver's end."""

    def __init__(self, path: str, index: int, timeout: float) -> None:
        self._path = path
        self._index = index
        self._timeout = timeout
        self._peer: Frames | None = None
        self._memory: torch.Tensor | None = None
        self._size = 0
        self.expected = -1

    def begin(self, version: int) -> None:
        """Connect if need be and wait until a transfer is announced. Raises WeightSyncError for another version."""
        deadline = time.monotonic() + self._timeout
        while True:
            if self._peer is None:
                self._connect(deadline)
            assert self._peer is not None
            try:
                message = self._peer.receive(max(0.001, deadline - time.monotonic()))
            except Closed:
                # The sender dropped what was left of an earlier transfer, or was launched again.
                self._drop()
                if time.monotonic() < deadline:
                    time.sleep(_RETRY_S)
                    continue
                raise
            break
        if message["kind"] == "abort":
            raise WeightSyncError(f"The sender gave up: {message['reason']}")
        if message["kind"] != "begin" or message["version"] != version:
            raise WeightSyncError(f"Weights of version {version} were expected, {message.get('version')} came.")

    def buckets(self) -> Iterator[tuple[list[Any], torch.Tensor]]:
        """Yield (pieces, bytes) of each bucket; it may be filled anew when the next one is asked for."""
        assert self._peer is not None and self._memory is not None
        while True:
            message = self._peer.receive(self._timeout)
            if message["kind"] == "abort":
                raise WeightSyncError(f"The sender gave up: {message['reason']}")
            if message["kind"] == "end":
                self.expected = message["count"]
                return
            yield message["pieces"], _slot(self._memory, message["sequence"], self._size)
            self._peer.send({"kind": "read"}, self._timeout)

    def confirm(self) -> None:
        """Tell the sender that everything arrived."""
        assert self._peer is not None
        self._peer.send({"kind": "read"}, self._timeout)

    def abort(self, reason: str) -> None:
        """Tell the sender that this receiver gives up, and drop the connection."""
        if self._peer is not None:
            try:
                self._peer.send({"kind": "error", "reason": reason}, 1.0)
            except WeightSyncError:
                pass  # It may be the sender that died.
        self._drop()

    def close(self) -> None:
        """Drop connection and memory."""
        self._drop()

    def _connect(self, deadline: float) -> None:
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._path)
                peer = Frames(connection, "The sender")
                peer.send({"receiver": self._index}, self._timeout)
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
                if not descriptors:
                    raise Closed("The sender is gone (it sent no memory).")
                message = peer.receive(self._timeout)
            except (OSError, Closed):
                connection.close()
                if time.monotonic() >= deadline:
                    raise WeightSyncError(
                        f"Receiver {self._index} found no sender within {self._timeout:g} s."
                    ) from None
                time.sleep(_RETRY_S)
                continue
            self._size = message["size"]
            self._memory = _map(descriptors[0], self._size * _SLOTS)
            os.close(descriptors[0])
            self._peer = peer
            return

    def _drop(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = None
        self._memory = None


def anonymous_memory(size: int) -> int:
    """Return the descriptor of shared memory without a name; pages count when they are first written."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("plugrl", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:  # Has no name either once it is open.
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _map(descriptor: int, size: int) -> torch.Tensor:
    """Return the memory as uint8 [size]; it stays mapped as long as the tensor or a view of it lives."""
    return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)


def _slot(memory: torch.Tensor, sequence: int, size: int) -> torch.Tensor:
    start = (sequence % _SLOTS) * size
    return memory[start : start + size]
