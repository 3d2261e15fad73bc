"""Buckets through Ray's object store, for receivers on other nodes; a small actor carries the messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ray
import torch

from plugrl.errors import WeightSyncError

_AHEAD = 2
_GRACE_S = 10.0


class StoreOutlet:
    """The sender's end."""

    def __init__(self, mailbox: Any, indices: Sequence[int], timeout: float) -> None:
        self._mailbox = mailbox
        self._indices = tuple(indices)
        self._timeout = timeout
        self._sequence = 0
        self._acknowledged: dict[int, int] = {}

    def begin(self, version: int) -> None:
        """Announce a transfer."""
        self._sequence = 0
        self._acknowledged = dict.fromkeys(self._indices, 0)
        _get(self._mailbox.reset.remote(self._indices), self._timeout)
        self._post({"kind": "begin", "version": version})

    def publish(self, header: list[Any], data: torch.Tensor) -> None:
        """Put a bucket (uint8) into the object store and send its reference."""
        self._wait_acknowledged(self._sequence - _AHEAD + 1)
        reference = ray.put(data.numpy())
        self._post({"kind": "bucket", "pieces": header, "data": [reference]})
        self._sequence += 1

    def end(self, count: int) -> None:
        """Tell the receivers that all ``count`` tensors were sent, and wait until all have them."""
        self._post({"kind": "end", "count": count})
        self._wait_acknowledged(self._sequence + 1)

    def abort(self, reason: str) -> None:
        """Tell the receivers that the transfer failed."""
        self._mailbox.post.remote("to", self._indices, {"kind": "abort", "reason": reason})

    def _post(self, message: dict[str, Any]) -> None:
        _get(self._mailbox.post.remote("to", self._indices, message), self._timeout)

    def _wait_acknowledged(self, sequence: int) -> None:
        for index in self._indices:
            while self._acknowledged[index] < sequence:
                message = _take(self._mailbox, "from", index, self._timeout)
                if message is None:
                    raise WeightSyncError(f"Receiver {index} did not answer for {self._timeout:g} s.")
                if message["kind"] != "read":
                    raise WeightSyncError(f"Receiver {index} gave up: {message['reason']}")
                self._acknowledged[index] += 1


class StoreInlet:
    """A receiver's end."""

    def __init__(self, mailbox: Any, index: int, timeout: float) -> None:
        self._mailbox = mailbox
        self._index = index
        self._timeout = timeout
        self.expected = -1

    def begin(self, version: int) -> None:
        """Wait until a transfer is announced. Raises WeightSyncError for another version."""
        message = self._next()
        while message["kind"] != "begin":  # What is left of a transfer that failed.
            message = self._next()
        if message["version"] != version:
            raise WeightSyncError(f"Weights of version {version} were expected, {message['version']} came.")

    def buckets(self) -> Iterator[tuple[list[Any], torch.Tensor]]:
        """Yield (pieces, bytes) of each bucket."""
        while True:
            message = self._next()
            if message["kind"] == "abort":
                raise WeightSyncError(f"The sender gave up: {message['reason']}")
            if message["kind"] == "end":
                self.expected = message["count"]
                return
            data = _get(message["data"][0], self._timeout)
            # Objects of the store are read-only, which torch has no word for: the copy is the tensor's own memory.
            yield message["pieces"], torch.from_numpy(data.copy())
            self._answer({"kind": "read"})

    def confirm(self) -> None:
        """Tell the sender that everything arrived."""
        self._answer({"kind": "read"})

    def abort(self, reason: str) -> None:
        """Tell the sender that this receiver gives up."""
        self._mailbox.post.remote("from", [self._index], {"kind": "error", "reason": reason})

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _answer(self, message: dict[str, Any]) -> None:
        _get(self._mailbox.post.remote("from", [self._index], message), self._timeout)

    def _next(self) -> dict[str, Any]:
        message = _take(self._mailbox, "to", self._index, self._timeout)
        if message is None:
            raise WeightSyncError(f"The sender sent nothing for {self._timeout:g} s.")
        assert isinstance(message, dict)
        return message


def _take(mailbox: Any, box: str, index: int, timeout: float) -> Any:
    return _get(mailbox.take.remote(box, index, timeout), timeout + _GRACE_S)


def _get(reference: Any, timeout: float) -> Any:
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.RayError as error:
        raise WeightSyncError(f"Ray could not carry the weights: {error}") from error
