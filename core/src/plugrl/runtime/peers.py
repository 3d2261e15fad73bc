"""Sending to and receiving from workers of any group, by group and rank, without the driver.

A name is looked up once and again when its process is lost, so that the ranks of a group that was launched again are
found, and no message goes to those that were there before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.errors import PeerLostError, PlugRLError
from plugrl.runtime.address import WorkerAddress
from plugrl.runtime.deadline import DEFAULT, Deadline, Timeout
from plugrl.runtime.directory import LOOK_UP_TIMEOUT_S, Directory
from plugrl.runtime.losses import Launch, announced

if TYPE_CHECKING:
    from plugrl.runtime.transport import Endpoint, Pending

R = TypeVar("R")


class Peers:
    """The other workers as one process sees them; ``own`` is None in the driver. Several threads may use it.

    ``timeout`` is for the look-up and the transfer together: seconds, 60 when omitted, None for ever, 0 not at all.
    Every method raises PeerLostError when the other process is gone or frozen, and RuntimeTimeout when the time is
    over. Messages of one pair and tag arrive in the order they were sent.
    """

    def __init__(self, directory: Directory, endpoint: Endpoint, own: WorkerAddress | None) -> None:
        self._directory = directory
        self._endpoint = endpoint
        self._own = own
        self._known: dict[WorkerAddress, tuple[int, str]] = {}
        self._announced: set[tuple[Launch, int]] = set()
        self._lock = threading.Lock()

    def send(
        self,
        value: Any,
        group: str,
        rank: int,
        *,
        tag: str = "",
        timeout: Timeout = DEFAULT,
        transport: str | None = None,
    ) -> None:
        """Send tensors, or lists, dictionaries and dataclasses of them, or any object; returns when it is out."""
        self._transfer(
            WorkerAddress(group, rank), timeout,
            lambda peer, left: self._endpoint.send(peer, value, f"p:{tag}", timeout=left, transport=transport),
        )  # fmt: skip

    def recv(self, group: str, rank: int, *, tag: str = "", timeout: Timeout = DEFAULT) -> Any:
        """Return the next message of a worker with this tag; tensors arrive contiguous."""
        return self._transfer(
            WorkerAddress(group, rank), timeout, lambda peer, left: self._endpoint.recv(peer, f"p:{tag}", timeout=left)
        )

    def isend(self, value: Any, group: str, rank: int, *, tag: str = "", timeout: Timeout = DEFAULT) -> Pending[None]:
        """As :meth:`send`; what is returned ends when the other worker has taken the message."""
        return self._transfer(
            WorkerAddress(group, rank), timeout,
            lambda peer, left: self._endpoint.isend(peer, value, f"p:{tag}", timeout=left, acknowledge=True),
        )  # fmt: skip

    def irecv(self, group: str, rank: int, *, tag: str = "", timeout: Timeout = DEFAULT) -> Pending[Any]:
        """Ask for the next message without waiting for it."""
        return self._transfer(
            WorkerAddress(group, rank), timeout, lambda peer, left: self._endpoint.irecv(peer, f"p:{tag}", timeout=left)
        )

    def send_tensor(self, tensor: Any, group: str, rank: int, *, tag: str = "", timeout: Timeout = DEFAULT) -> None:
        """Send one tensor to a :meth:`recv_tensor`; raises TransportError when shape or dtype differ there."""
        self._transfer(
            WorkerAddress(group, rank), timeout,
            lambda peer, left: self._endpoint.send_tensor(peer, tensor, f"p:{tag}", timeout=left),
        )  # fmt: skip

    def recv_tensor(self, tensor: Any, group: str, rank: int, *, tag: str = "", timeout: Timeout = DEFAULT) -> Any:
        """Receive into ``tensor`` and return it."""
        return self._transfer(
            WorkerAddress(group, rank), timeout,
            lambda peer, left: self._endpoint.recv_tensor(peer, tensor, f"p:{tag}", timeout=left),
        )  # fmt: skip

    def broadcast(
        self,
        value: Any = None,
        *,
        groups: Sequence[tuple[str, Sequence[int]]],
        src: tuple[str, int] | None = None,
        tag: str = "",
        timeout: Timeout = DEFAULT,
    ) -> Any:
        """Give ``value`` of the source to every listed worker, and return it on all of them.

        Args:
            groups: names and ranks of all who take part; all call with the same ones.
            src: group and rank of the source, the first listed one when omitted.

        Raises:
            PlugRLError: nobody is listed, or not this worker, or not the source.
        """
        members = [WorkerAddress(group, rank) for group, ranks in groups for rank in ranks]
        if not members:
            raise PlugRLError("broadcast: groups names no worker; give (group, ranks) pairs.")
        source = WorkerAddress(*src) if src is not None else members[0]
        for wanted in (self._own, source):
            if wanted not in members:
                raise PlugRLError(f"broadcast: {wanted} is none of {', '.join(map(str, members))}.")
        deadline = Deadline(timeout, LOOK_UP_TIMEOUT_S)
        if self._own != source:
            return self._transfer(
                source, deadline.remaining(), lambda peer, left: self._endpoint.recv(peer, f"b:{tag}", timeout=left)
            )
        for member in dict.fromkeys(members):
            if member != source:
                self._transfer(
                    member, deadline.remaining(),
                    lambda peer, left: self._endpoint.send(peer, value, f"b:{tag}", timeout=left),
                )  # fmt: skip
        return value

    # ----------------------------------------------------------------- who is where
    def address(self, peer: WorkerAddress, timeout: Timeout = DEFAULT) -> str:
        """Return where the endpoint of a worker is, of the latest launch of its group."""
        with self._lock:
            known = self._known.get(peer)
        if known is not None:
            return known[1]
        deadline = Deadline(timeout, LOOK_UP_TIMEOUT_S)
        group = self._directory.lookup(f"group/{peer.group}", deadline.remaining(), what=f"worker group {peer.group!r}")
        if not 0 <= peer.rank < group["size"]:
            raise PlugRLError(f"Worker group {peer.group!r} has no rank {peer.rank}: it has {group['size']}, from 0.")
        generation = group["generation"]
        name = f"endpoint/{peer.group}/{generation}/{peer.rank}"
        address: str = self._directory.lookup(name, deadline.remaining(), what=f"where {peer} is")
        with self._lock:
            self._known[peer] = generation, address
        return address

    def check(self) -> None:
        """Take note of the losses that the driver announced: waits for those workers end. For every tick of a wait."""
        if not self._known:
            return
        for launch, rank, reason in announced(self._directory):
            with self._lock:
                if (launch, rank) in self._announced:
                    continue
                known = self._known.get(WorkerAddress(launch.group, rank))
                if known is None:
                    continue
                self._announced.add((launch, rank))
            if known[0] == launch.generation:
                self._endpoint.peer_lost(known[1], reason)

    def _transfer(self, peer: WorkerAddress, timeout: Timeout, act: Callable[[str, float | None], R]) -> R:
        if peer == self._own:
            raise PlugRLError(f"{peer} cannot send to itself or receive from itself.")
        deadline = Deadline(timeout, LOOK_UP_TIMEOUT_S)
        address = self.address(peer, deadline.remaining())
        try:
            return act(address, deadline.remaining())
        except PeerLostError as error:
            error.group, error.rank = peer.group, peer.rank
            with self._lock:
                self._known.pop(peer, None)
            # A group that was launched again is there under its old name; the lost process got nothing of this.
            if not self._has_moved(peer, address):
                raise
            return act(self.address(peer, deadline.remaining()), deadline.remaining())

    def _has_moved(self, peer: WorkerAddress, address: str) -> bool:
        group = self._directory.find(f"group/{peer.group}")
        if group is None:
            return False
        now = self._directory.find(f"endpoint/{peer.group}/{group['generation']}/{peer.rank}")
        return now is not None and now != address
