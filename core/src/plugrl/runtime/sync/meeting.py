"""Where the sender and the receivers of one node meet: a Unix socket in a folder of the run.

The sender listens; a receiver connects when it first waits for weights and after every break. Both ends see at once
when the other is gone.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.frames import Closed, Frames, GaveUp
from plugrl.runtime.sync.lookout import LOOK_EVERY_S, Lookout

Message = dict[str, Any]
_RETRY_S = 0.02
_PARTING_S = 1.0
_STALE_S = 0.5
"""How long the end of an earlier transfer may be behind its beginning."""


class PeerServer:
    """The sender's end: a connection to each receiver with one of ``indices``."""

    def __init__(
        self,
        path: str,
        indices: Sequence[int],
        timeout: float,
        greet: Callable[[Frames], None] = lambda peer: None,
        lookout: Lookout | None = None,
    ) -> None:
        self._path = path
        self._lookout = lookout or Lookout()
        self._indices = tuple(indices)
        self._timeout = timeout
        self._greet = greet
        self.peers: dict[int, Frames] = {}
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(len(self._indices) + 8)

    def gather(self) -> None:
        """Drop who is gone and wait for who is missing.

        Raises WeightSyncError naming those that did not come, and Closed as soon as it is known that one will not.
        """
        for index in [index for index, peer in self.peers.items() if peer.is_closed()]:
            self.peers.pop(index).close()
        deadline = time.monotonic() + self._timeout
        while missing := sorted(set(self._indices) - set(self.peers)):
            left = max(0.001, deadline - time.monotonic())
            self._listener.settimeout(min(left, LOOK_EVERY_S))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                self._lookout.for_receivers(missing)
                if left > LOOK_EVERY_S:
                    continue
                names = ", ".join(map(str, missing))
                raise WeightSyncError(f"Receiver {names} did not connect within {self._timeout:g} s.") from None
            self._welcome(Frames(connection, "A receiver"))

    def post(self, message: Message) -> None:
        """Send a message to every receiver."""
        for peer in self.peers.values():
            peer.send(message, self._timeout)

    def answer_of(self, index: int) -> Message:
        """Return the next message of a receiver. Raises WeightSyncError when it gave up, is gone or silent."""
        message = self.peers[index].receive(self._timeout)
        if message["kind"] == "error":
            raise GaveUp(f"Receiver {index} gave up: {message['reason']}")
        return message

    def answers(self) -> dict[int, Message]:
        """Return the next message of every receiver."""
        return {index: self.answer_of(index) for index in list(self.peers)}

    def commit(self) -> None:
        """Tell all receivers to use what they have, also when one of them is gone. Raises WeightSyncError then."""
        lost: list[WeightSyncError] = []
        for peer in self.peers.values():
            try:
                peer.send({"kind": "commit"}, self._timeout)
            except WeightSyncError as error:
                lost.append(error)
        if lost:
            self._drop_all()
            kind = Closed if all(error.is_consequence for error in lost) else WeightSyncError
            raise kind(f"{' '.join(map(str, lost))} All others have the new weights.")

    def abort(self, reason: str) -> None:
        """Tell the receivers that the transfer failed and drop the connections."""
        for peer in self.peers.values():
            try:
                peer.send({"kind": "abort", "reason": reason}, _PARTING_S)
            except WeightSyncError:
                pass  # It may be the one that died.
        self._drop_all()

    def close(self) -> None:
        """Drop connections and address."""
        self._drop_all()
        self._listener.close()
        Path(self._path).unlink(missing_ok=True)

    def _drop_all(self) -> None:
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()

    def _welcome(self, peer: Frames) -> None:
        """Take up a receiver; one that died while it waited is dropped, the next attempt will find it missing."""
        try:
            index = int(peer.receive(self._timeout)["receiver"])
            peer.peer = f"Receiver {index}"
            self._greet(peer)
        except (Closed, OSError):
            peer.close()
            return
        stale = self.peers.pop(index, None)
        if stale is not None:
            stale.close()
        self.peers[index] = peer


class PeerClient:
    """A receiver's end; ``greeted`` runs on each new connection, with what the sender's ``greet`` sends."""

    def __init__(
        self,
        path: str,
        index: int,
        timeout: float,
        greeted: Callable[[Frames], None] = lambda peer: None,
        lookout: Lookout | None = None,
    ) -> None:
        self._path = path
        self._lookout = lookout or Lookout()
        self._index = index
        self._timeout = timeout
        self._greeted = greeted
        self._peer: Frames | None = None

    @property
    def peer(self) -> Frames:
        """The connection of the transfer that has begun."""
        assert self._peer is not None
        return self._peer

    def begin(self, version: int) -> Message:
        """Connect if need be and return the announcement. Raises WeightSyncError for another version."""
        deadline = time.monotonic() + self._timeout
        if self._peer is not None and self._peer.has_hung_up():
            self.drop()  # with what an earlier transfer has left in it
        while True:
            if self._peer is None:
                self._connect(deadline)
            try:
                message = self._announcement(version, deadline)
            except Closed:
                # The sender dropped what was left of an earlier transfer, or was launched again.
                self.drop()
                if time.monotonic() < deadline:
                    time.sleep(_RETRY_S)
                    continue
                raise
            break
        return check_announced(message, version)

    def _announcement(self, version: int, deadline: float) -> Message:
        """Return the next message; Closed when it announces an earlier transfer, as soon as the end of that comes."""
        message = self.peer.receive(max(0.001, deadline - time.monotonic()))
        if message["kind"] != "begin" or message["version"] >= version:
            return message
        try:
            following = self.peer.receive(_STALE_S)
        except Closed:
            raise
        except WeightSyncError:
            return message
        if following["kind"] == "abort":
            raise Closed(f"The sender gave up an earlier transfer: {following['reason']}")
        return message

    def send(self, message: Message) -> None:
        """Send a message to the sender."""
        self.peer.send(message, self._timeout)

    def receive(self) -> Message:
        """Return the next message. Raises WeightSyncError when the sender gave up, is gone or silent."""
        return check_going_on(self.peer.receive(self._timeout))

    def abort(self, reason: str) -> None:
        """Tell the sender that this receiver gives up, and drop the connection."""
        if self._peer is not None:
            try:
                self._peer.send({"kind": "error", "reason": reason}, _PARTING_S)
            except WeightSyncError:
                pass  # It may be the sender that died.
        self.drop()

    def drop(self) -> None:
        """Close the connection."""
        if self._peer is not None:
            self._peer.close()
        self._peer = None

    def _connect(self, deadline: float) -> None:
        looked = time.monotonic()
        while True:
            if time.monotonic() - looked > LOOK_EVERY_S:
                self._lookout.for_sender()
                looked = time.monotonic()
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(self._path)
                peer = Frames(connection, "The sender")
                peer.send({"receiver": self._index}, self._timeout)
                self._greeted(peer)
            except (OSError, WeightSyncError) as error:
                connection.close()
                if isinstance(error, WeightSyncError) and not isinstance(error, Closed):
                    raise
                if time.monotonic() >= deadline:
                    raise WeightSyncError(
                        f"Receiver {self._index} found no sender within {self._timeout:g} s."
                    ) from None
                time.sleep(_RETRY_S)
                continue
            self._peer = peer
            return


def check_announced(message: Message, version: int) -> Message:
    """Return the announcement of a transfer; WeightSyncError when it is none, or of another version."""
    check_going_on(message)
    if message["kind"] != "begin" or message["version"] != version:
        raise WeightSyncError(f"Weights of version {version} were expected, {message.get('version')} came.")
    return message


def check_going_on(message: Message) -> Message:
    """Return the message; WeightSyncError when the sender gave up."""
    if message["kind"] == "abort":
        raise GaveUp(f"The sender gave up: {message['reason']}")
    return message
