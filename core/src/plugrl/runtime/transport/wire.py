"""One connection: frames of a header, a payload and descriptors, written from any thread and read by the loop.

A frame is ``header length, number of descriptors, payload length`` and then the two parts; descriptors are passed
beside its first byte. The socket never blocks: a thread that writes waits for room up to its deadline, the loop leaves
in a queue what does not fit.
"""

from __future__ import annotations

import array
import mmap
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from plugrl.errors import RuntimeTimeout
from plugrl.runtime.transport.loop import Loop

Buffer = bytes | bytearray | memoryview | mmap.mmap

_PREFIX = struct.Struct("!IIQ")
_READ_BYTES = 256 * 2**10
_TURN_BYTES = 2**20
"""Read from one connection before the others have their turn."""
_WRITE_BYTES = 2**20
_LARGE_BYTES = 4 * 2**20
_DESCRIPTORS = 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(_DESCRIPTORS * array.array("i").itemsize)

OnFrame = Callable[["Flow", bytes, Buffer, list[int]], None]
OnLost = Callable[["Flow", str], None]


class FlowLost(Exception):
    """The connection is gone; the text says why."""


class Flow:
    """One connection, looked after by ``loop``; ``on_frame`` and ``on_lost`` run in its thread."""

    def __init__(self, connection: socket.socket, loop: Loop, on_frame: OnFrame, on_lost: OnLost) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._number = connection.fileno()
        self._loop = loop
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._passes_descriptors = connection.family == socket.AF_UNIX
        self._writing = threading.Lock()
        self._queue: deque[tuple[list[memoryview], list[int]]] = deque()
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._frame: tuple[bytes, int] | None = None
        self._payload: bytearray | mmap.mmap = bytearray()
        self._filled = 0
        self._expected = 0
        self.lost: str | None = None

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._number

    # ----------------------------------------------------------------- writing
    def send(
        self,
        header: bytes,
        payload: Sequence[Buffer] = (),
        descriptors: Sequence[int] = (),
        deadline: float | None = None,
    ) -> None:
        """Write a frame from a thread that may wait. Raises FlowLost, or RuntimeTimeout when nothing was written.

        A deadline that comes when part of the frame is out ends the connection: the other end could not go on.
        """
        if not self._writing.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise RuntimeTimeout("Another message was still being written.")
        try:
            parts = _parts(header, payload, len(descriptors))
            self._flush_queue(wait=True, deadline=deadline)
            self._write(parts, list(descriptors), deadline)
        finally:
            self._writing.release()
        if self._queue:
            self._loop.call_soon(self._pump)

    def post(self, header: bytes, payload: Sequence[Buffer] = (), descriptors: Sequence[int] = ()) -> None:
        """Write a frame as soon as there is room, without waiting; silent when the connection is gone."""
        if self.lost is not None:
            return
        # The descriptors may be closed by their owner before there is room.
        copies = [os.dup(number) for number in descriptors]
        self._queue.append((_parts(header, payload, len(copies)), copies))
        if self._loop.in_thread():
            self._pump()
        else:
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Write what is queued, as far as there is room now; in the loop's thread."""
        if self.lost is not None or not self._writing.acquire(blocking=False):
            return  # Whoever is writing goes on with the queue, or calls for this again.
        try:
            done = self._flush_queue(wait=False, deadline=None)
        except FlowLost:
            return  # What the other end said before it closed is still to be read; the end of it closes this one.
        finally:
            self._writing.release()
        if self.lost is None:
            self._loop.want_write(self, not done)

    def _flush_queue(self, *, wait: bool, deadline: float | None) -> bool:
        while self._queue:
            parts, descriptors = self._queue[0]
            if wait:
                self._write(parts, descriptors, deadline)
            elif not self._write_some(parts, descriptors):
                return False
            self._queue.popleft()
        return True

    def _write(self, parts: list[memoryview], descriptors: list[int], deadline: float | None) -> None:
        whole = sum(map(len, parts))
        while not self._write_some(parts, descriptors):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                if sum(map(len, parts)) != whole:
                    self._loop.call_soon(lambda: self.close("a message stopped halfway at its deadline"))
                raise RuntimeTimeout("The other end read nothing.")
            poll = select.poll()
            poll.register(self._number, select.POLLOUT)
            poll.poll(250 if left is None else min(250, max(1, left * 1000)))

    def _write_some(self, parts: list[memoryview], descriptors: list[int]) -> bool:
        """Write until there is no room; ``parts`` and ``descriptors`` keep what is left. Return whether nothing is."""
        while parts:
            if self.lost is not None:
                raise FlowLost(self.lost)
            batch = parts[:64]
            if len(batch[0]) > _WRITE_BYTES:
                batch = [batch[0][:_WRITE_BYTES]]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                count = self._socket.sendmsg(batch, ancillary)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                raise FlowLost(f"it is gone ({error.strerror or error})") from None
            if descriptors:
                self._close_copies(descriptors)
            while parts and count >= len(parts[0]):
                count -= len(parts.pop(0))
            if count:
                parts[0] = parts[0][count:]
        return True

    def _close_copies(self, descriptors: list[int]) -> None:
        """Close what :meth:`post` duplicated; those of :meth:`send` belong to its caller."""
        if self._queue and self._queue[0][1] is descriptors:
            for number in descriptors:
                os.close(number)
        descriptors.clear()

    # ----------------------------------------------------------------- reading
    def on_ready(self, readable: bool, writable: bool) -> None:
        """Called by the loop."""
        if writable:
            self._pump()
        if readable and self.lost is None:
            self._read()

    def on_fault(self, error: Exception) -> None:
        """Called by the loop when :meth:`on_ready` raised."""
        self.close(f"{type(error).__name__}: {error}")

    def feed(self, data: bytes) -> None:
        """Take up bytes that were read before the loop looked after the socket."""
        self._received += data
        self._parse()

    def drain(self) -> None:
        """Read what is there; in the loop's thread."""
        if self.lost is None:
            self._read()

    def _read(self) -> None:
        budget = _TURN_BYTES
        while budget > 0 and self.lost is None:
            try:
                if self._frame is not None and self._filled < self._frame[1]:
                    room = memoryview(self._payload)[self._filled :]
                    size = self._socket.recv_into(room, min(budget, len(room)))
                    room.release()
                    self._filled += size
                else:
                    data = self._receive(_READ_BYTES)
                    size = len(data)
                    self._received += data
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"it is gone ({error.strerror or error})")
                return
            if not size:
                self.close("it closed the connection")
                return
            budget -= size
            self._parse()

    def _receive(self, size: int) -> bytes:
        if not self._passes_descriptors:
            return self._socket.recv(size)
        data, ancillary, _, _ = self._socket.recvmsg(size, _ANCILLARY_BYTES, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self._descriptors.extend(numbers)
        return data

    def _parse(self) -> None:
        while self.lost is None:
            if self._frame is None and not self._begin_frame():
                return
            assert self._frame is not None
            header, size = self._frame
            if self._filled < size:
                return
            payload, self._payload = self._payload, bytearray()
            self._frame = None
            self._on_frame(self, header, payload, [self._descriptors.popleft() for _ in range(self._expected)])

    def _begin_frame(self) -> bool:
        """Take prefix, header and what is there of the payload from the bytes received; False when more is needed."""
        data = self._received
        if len(data) < _PREFIX.size:
            return False
        header_size, descriptors, payload_size = _PREFIX.unpack_from(data)
        start = _PREFIX.size + header_size
        if len(data) < start:
            return False
        header = bytes(data[_PREFIX.size : start])
        there = min(payload_size, len(data) - start)
        if there == payload_size:
            self._payload = data[start : start + there]
        else:
            self._payload = _memory(payload_size)
            self._payload[:there] = data[start : start + there]
        del data[: start + there]
        self._frame, self._filled, self._expected = (header, payload_size), there, descriptors
        return True

    # ----------------------------------------------------------------- ending
    def close(self, reason: str) -> None:
        """End the connection; in the loop's thread. May be repeated."""
        if self.lost is not None:
            return
        self.lost = reason
        self._loop.remove(self)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes a thread that waits for room.
        except OSError:
            pass  # The other end closed it.
        for number in self._descriptors:
            os.close(number)
        self._descriptors.clear()
        with self._writing:
            self._socket.close()
            for _, copies in self._queue:
                for number in copies:
                    os.close(number)
            self._queue.clear()
        self._on_lost(self, reason)


def _memory(size: int) -> bytearray | mmap.mmap:
    """Return memory for a payload: large ones in huge pages where there are such, which are quickly had and freed."""
    if size < _LARGE_BYTES:
        return bytearray(size)
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # A kernel without them.
    return memory


def _parts(header: bytes, payload: Sequence[Buffer], descriptors: int) -> list[memoryview]:
    views = [view for part in payload if len(view := memoryview(part).cast("B"))]
    size = sum(map(len, views))
    return [memoryview(_PREFIX.pack(len(header), descriptors, size) + header), *views]
