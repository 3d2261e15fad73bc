"""The first bytes of a connection: both ends prove that they know the run's secret before anything else is read.

The one that connects sends a mark and a nonce; the other one answers with a nonce and a proof over both; the first one
sends its proof and its hello. A process that does not know the secret never gets as far as a pickle.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from plugrl.errors import PeerLostError, RuntimeTimeout
from plugrl.runtime.transport.address import Address
from plugrl.runtime.transport.loop import Loop

_MARK = b"plugrl1\n"
_NONCE = 32
_LENGTH = struct.Struct("!I")
_RETRY_S = 0.01
_GREETING_S = 10.0
"""What somebody who connects has to finish its greeting."""


@dataclass(frozen=True)
class Hello:
    """Who connects. Connections with one ``ident`` belong together; ``index`` 0 is the one for control."""

    address: Address
    ident: str
    index: int


def dial(target: Address, hello: Hello, secret: bytes, *, network: bool, deadline: float | None) -> socket.socket:
    """Connect to an endpoint. Raises PeerLostError when nobody is there, RuntimeTimeout when nobody answers."""
    family = socket.AF_INET6 if network and ":" in target.host else socket.AF_INET if network else socket.AF_UNIX
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        _connect(connection, target, network, deadline)
        nonce = os.urandom(_NONCE)
        connection.sendall(_MARK + nonce)
        answer = _exactly(connection, 2 * _NONCE, deadline)
        if not hmac.compare_digest(answer[_NONCE:], _proof(secret, b"accepts", nonce, answer[:_NONCE])):
            raise PeerLostError(f"{target.label} does not know the secret of this run: it belongs to another one.")
        body = json.dumps(asdict(hello)).encode()
        connection.sendall(_proof(secret, b"connects", answer[:_NONCE], nonce) + _LENGTH.pack(len(body)) + body)
    except TimeoutError:
        connection.close()
        raise RuntimeTimeout(f"{target.label} did not answer a connection; it may be stopped.") from None
    except OSError as error:
        connection.close()
        raise PeerLostError(f"{target.label} is gone ({error.strerror or error}).") from None
    except BaseException:
        connection.close()
        raise
    if network:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _connect(connection: socket.socket, target: Address, network: bool, deadline: float | None) -> None:
    while True:
        _limit(connection, deadline)
        try:
            connection.connect((target.host, target.port) if network else target.path)
            return
        except OSError as error:
            # The queue of a Unix socket that accepts is full: not an end, but a moment's wait.
            if error.errno != errno.EAGAIN:
                raise
        time.sleep(_RETRY_S)


def _limit(connection: socket.socket, deadline: float | None) -> None:
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    data = b""
    while len(data) < size:
        _limit(connection, deadline)
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
        data += part
    return data


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, role + first + second, "sha256")


class Listener:
    """A listening socket in the loop; hands every connection to ``on_hello`` after its greeting."""

    def __init__(
        self, listener: socket.socket, loop: Loop, secret: bytes, on_hello: Callable[[socket.socket, Hello], None]
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._loop = loop
        self._secret = secret
        self._on_hello = on_hello
        self._greetings: set[_Greeting] = set()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._listener.fileno()

    def on_ready(self, readable: bool, writable: bool) -> None:
        """Accept who waits."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # Nobody is left, or whoever it was is gone again.
            greeting = _Greeting(connection, self._loop, self._secret, self._greeted)
            self._greetings.add(greeting)
            self._loop.add(greeting)
            self._loop.call_at(time.monotonic() + _GREETING_S, greeting.give_up)

    def on_fault(self, error: Exception) -> None:
        """A failed accept concerns only the one that connected."""

    def close(self) -> None:
        """Listen no longer, and drop who has not greeted yet; in the loop's thread."""
        self._loop.remove(self)
        self._listener.close()
        for greeting in list(self._greetings):
            greeting.give_up()

    def _greeted(self, greeting: _Greeting, hello: Hello | None) -> None:
        self._greetings.discard(greeting)
        if hello is not None:
            self._on_hello(greeting.connection, hello)


class _Greeting:
    """The accepting side of one greeting. Reads no byte too many: descriptors may follow."""

    def __init__(
        self,
        connection: socket.socket,
        loop: Loop,
        secret: bytes,
        done: Callable[[_Greeting, Hello | None], None],
    ) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._loop = loop
        self._secret = secret
        self._done = done
        self._data = b""
        self._need = len(_MARK) + _NONCE
        self._step = self._answer
        self._nonces = (b"", b"")
        self._over = False

    def fileno(self) -> int:
        return self.connection.fileno()

    def on_ready(self, readable: bool, writable: bool) -> None:
        while not self._over:
            try:
                part = self.connection.recv(self._need - len(self._data))
            except BlockingIOError:
                return
            if not part:
                self.give_up()
                return
            self._data += part
            if len(self._data) == self._need:
                data, self._data = self._data, b""
                self._step(data)

    def on_fault(self, error: Exception) -> None:
        self.give_up()

    def give_up(self) -> None:
        if not self._over:
            self._over = True
            self._loop.remove(self)
            self.connection.close()
            self._done(self, None)

    def _answer(self, data: bytes) -> None:
        if not data.startswith(_MARK):
            self.give_up()
            return
        theirs, mine = data[len(_MARK) :], os.urandom(_NONCE)
        self._nonces = (theirs, mine)
        self.connection.sendall(mine + _proof(self._secret, b"accepts", theirs, mine))
        self._need, self._step = _NONCE + _LENGTH.size, self._check

    def _check(self, data: bytes) -> None:
        theirs, mine = self._nonces
        (size,) = _LENGTH.unpack(data[_NONCE:])
        if not hmac.compare_digest(data[:_NONCE], _proof(self._secret, b"connects", mine, theirs)) or size > 2**16:
            self.give_up()
            return
        self._need, self._step = size, self._finish

    def _finish(self, data: bytes) -> None:
        body = json.loads(data)
        hello = Hello(Address(**body["address"]), body["ident"], body["index"])
        self._over = True
        self._loop.remove(self)
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._done(self, hello)
