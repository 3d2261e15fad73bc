"""Messages over a Unix socket: JSON with a length in front, and a deadline on each."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any

from plugrl.errors import WeightSyncError

_LENGTH = struct.Struct("!I")
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


class Closed(WeightSyncError):
    """The other end is gone."""

    is_consequence = True


class GaveUp(WeightSyncError):
    """The other end failed first, and said why."""

    is_consequence = True


class Frames:
    """One connection."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        connection.setblocking(True)
        self.connection = connection
        self.peer = peer

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``select``."""
        return self.connection.fileno()

    def send(self, message: dict[str, Any], timeout: float) -> None:
        """Send a message. Raises Closed, or WeightSyncError after ``timeout`` seconds."""
        body = json.dumps(message).encode()
        self.connection.settimeout(timeout)
        try:
            self.connection.sendall(_LENGTH.pack(len(body)) + body)
        except TimeoutError:
            raise WeightSyncError(f"{self.peer} took nothing for {timeout:g} s.") from None
        except OSError as error:
            raise self._parting(error) from None

    def receive(self, timeout: float) -> dict[str, Any]:
        """Return the next message. Raises Closed, or WeightSyncError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline, timeout))
        message = json.loads(self._exactly(length, deadline, timeout))
        assert isinstance(message, dict)
        return message

    def send_descriptor(self, descriptor: int, timeout: float) -> None:
        """Send a descriptor; the other end takes it with :meth:`receive_descriptor` at the same point of the stream."""
        self.connection.settimeout(timeout)
        try:
            socket.send_fds(self.connection, [b"m"], [descriptor])
        except TimeoutError:
            raise WeightSyncError(f"{self.peer} took nothing for {timeout:g} s.") from None
        except OSError as error:
            raise self._parting(error) from None

    def receive_descriptor(self, timeout: float) -> int:
        """Return the descriptor that comes next; it is this process's to close."""
        self.connection.settimeout(timeout)
        try:
            _, descriptors, _, _ = socket.recv_fds(self.connection, 1, 1)
        except TimeoutError:
            raise WeightSyncError(f"{self.peer} sent nothing for {timeout:g} s.") from None
        except OSError as error:
            raise Closed(f"{self.peer} is gone ({error.strerror or error}).") from None
        if not descriptors:
            raise Closed(f"{self.peer} is gone (it sent no memory).")
        return descriptors[0]

    def is_closed(self) -> bool:
        """Whether the other end has closed, or sent what nobody waited for."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable)

    def has_hung_up(self) -> bool:
        """Whether the other end has closed, even if there is something left to read."""
        poll = select.poll()
        poll.register(self.connection, _HUNG_UP)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close this end."""
        self.connection.close()

    def _parting(self, error: OSError) -> WeightSyncError:
        """Return the reason that the other end gave before it closed, or that it is gone."""
        try:
            while (message := self.receive(0.1)).get("reason") is None:
                pass
        except WeightSyncError:
            return Closed(f"{self.peer} is gone ({error.strerror or error}).")
        return GaveUp(f"{self.peer} gave up: {message['reason']}")

    def _exactly(self, size: int, deadline: float, timeout: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WeightSyncError(f"{self.peer} sent nothing for {timeout:g} s.")
            self.connection.settimeout(left)
            try:
                part = self.connection.recv(min(size - len(data), 2**20))
            except TimeoutError:
                continue
            except OSError as error:
                raise Closed(f"{self.peer} is gone ({error.strerror or error}).") from None
            if not part:
                raise Closed(f"{self.peer} is gone (it closed the connection).")
            data += part
        return bytes(data)
