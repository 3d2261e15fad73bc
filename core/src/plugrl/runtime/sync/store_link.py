"""Buckets through Ray's object store, for receivers on other nodes; a small actor carries the messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.frames import Closed, GaveUp
from plugrl.runtime.sync.lookout import LOOK_EVERY_S, Lookout
from plugrl.runtime.sync.meeting import Message, check_announced, check_going_on

_AHEAD = 2
_GRACE_S = 10.0


class StoreOutlet:
    """The sender's end."""

    def __init__(self, mailbox: Any, indices: Sequence[int], timeout: float, lookout: Lookout) -> None:
        self._mailbox = mailbox
        self._lookout = lookout
        self._indices = tuple(indices)
        self._timeout = timeout
        self._sequence = 0
        self._read: dict[int, int] = {}

    def begin(self, message: Message) -> dict[int, Message]:
        """Announce a transfer and return what the receivers answer."""
        self._sequence = 0
        self._read = dict.fromkeys(self._indices, 0)
        _get(self._mailbox.reset.remote(self._indices), self._timeout)
        self.post(message)
        return {index: self._answer_of(index) for index in self._indices}

    def publish(self, header: list[Any], data: Any) -> None:
        """Put a bucket (uint8, or any object) into the object store and send its reference."""
        self._wait_read(self._sequence - _AHEAD + 1)
        reference = ray.put(data.numpy() if isinstance(data, torch.Tensor) else data)
        self.post({"kind": "bucket", "pieces": header, "data": [reference]})
        self._sequence += 1

    def end(self, message: Message) -> dict[int, Message]:
        """Tell the receivers that all was sent and return what they answer."""
        self.post(message)
        self._wait_read(self._sequence)
        return {index: self._answer_of(index) for index in self._indices}

    def post(self, message: Message) -> None:
        """Send a message to all receivers."""
        _get(self._mailbox.post.remote("to", self._indices, message), self._timeout)

    def commit(self) -> None:
        """Tell the receivers to use what they have."""
        self.post({"kind": "commit"})

    def abort(self, reason: str) -> None:
        """Tell the receivers that the transfer failed."""
        self._mailbox.post.remote("to", self._indices, {"kind": "abort", "reason": reason})

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _answer_of(self, index: int) -> Message:
        message = _take(
            self._mailbox, "from", index, self._timeout, lambda: self._lookout.for_receivers([index])
        )
        if message is None:
            raise WeightSyncError(f"Receiver {index} did not answer for {self._timeout:g} s.")
        if message["kind"] == "error":
            raise GaveUp(f"Receiver {index} gave up: {message['reason']}")
        assert isinstance(message, dict)
        return message

    def _wait_read(self, sequence: int) -> None:
        for index in self._indices:
            while self._read[index] < sequence:
                message = self._answer_of(index)
                if message["kind"] != "read":
                    raise WeightSyncError(f"Receiver {index} sent {message['kind']!r} before it had read everything.")
                self._read[index] += 1


class StoreInlet:
    """A receiver's end."""

    def __init__(self, mailbox: Any, index: int, timeout: float, lookout: Lookout) -> None:
        self._mailbox = mailbox
        self._lookout = lookout
        self._index = index
        self._timeout = timeout

    def begin(self, version: int) -> Message:
        """Wait until a transfer is announced. Raises WeightSyncError for another version."""
        message = self._next()
        while message["kind"] != "begin":  # What is left of a transfer that failed.
            message = self._next()
        return check_announced(message, version)

    def objects(self) -> Iterator[tuple[list[Any], Any]]:
        """Yield (pieces, object) of each bucket. The message that came after the last one is in ``last``."""
        while (message := self.receive())["kind"] == "bucket":
            yield message["pieces"], _get(message["data"][0], self._timeout)
            self.send({"kind": "read"})
        self.last = message

    def buckets(self) -> Iterator[tuple[list[Any], torch.Tensor]]:
        """Yield (pieces, bytes) of each bucket."""
        for pieces, data in self.objects():
            # Objects of the store are read-only, which torch has no word for: the copy is the tensor's own memory.
            yield pieces, torch.from_numpy(data.copy())

    def send(self, message: Message) -> None:
        """Answer the sender."""
        _get(self._mailbox.post.remote("from", [self._index], message), self._timeout)

    def receive(self) -> Message:
        """Return the next message. Raises WeightSyncError when the sender gave up."""
        return check_going_on(self._next())

    def abort(self, reason: str) -> None:
        """Tell the sender that this receiver gives up."""
        self._mailbox.post.remote("from", [self._index], {"kind": "error", "reason": reason})

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _next(self) -> Message:
        message = _take(self._mailbox, "to", self._index, self._timeout, self._lookout.for_sender)
        if message is None:
            raise WeightSyncError(f"The sender sent nothing for {self._timeout:g} s.")
        assert isinstance(message, dict)
        return message


def _take(mailbox: Any, box: str, index: int, timeout: float, look: Callable[[], None]) -> Any:
    """Return the next message, None after ``timeout`` seconds; ``look`` raises when nothing will come."""
    deadline = time.monotonic() + timeout
    while True:
        left = max(0.0, deadline - time.monotonic())
        reference = mailbox.take.remote(box, index, min(left, LOOK_EVERY_S))
        try:
            # The mailbox itself may still be starting.
            while not ray.wait([reference], timeout=2 * LOOK_EVERY_S)[0] and time.monotonic() < deadline + _GRACE_S:
                look()
            message = _get(reference, LOOK_EVERY_S)
        except BaseException:
            ray.cancel(reference)  # Left alone it would take the first message of the next transfer.
            raise
        if message is not None or left <= LOOK_EVERY_S:
            return message
        look()


def _get(reference: Any, timeout: float) -> Any:
    try:
        return ray.get(reference, timeout=timeout)
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
        raise Closed(f"Ray has lost the weights on their way: {error}") from error
    except ray.exceptions.RayError as error:
        raise WeightSyncError(f"Ray could not carry the weights: {error}") from error
