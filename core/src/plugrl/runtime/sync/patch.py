"""The syncer ``patch``: only the elements that changed since the version that the receivers have.

Sender and receivers keep a snapshot on the host. It has an identity, made anew with each full transfer; a receiver that
has another identity or version (it was launched again, or a transfer broke) makes the next transfer a full one. Before
a patch is used, the old elements at its places are checked by a digest: a snapshot that is not the sender's asks for
all weights in the same transfer.
"""

from __future__ import annotations

import uuid

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync import delta
from plugrl.runtime.sync.base import Received, ReceiverEnd, SenderEnd, SyncReport, WeightSyncer
from plugrl.runtime.sync.exchange import Exchange, Intake
from plugrl.runtime.sync.route import WeightRoute
from plugrl.runtime.sync.source import Tensors, WeightSource


class PatchSyncer(WeightSyncer):
    """Changed elements, as gaps and values; a tensor of which much has changed is sent whole."""

    @classmethod
    def sender(cls, route: WeightRoute) -> SenderEnd:
        """Make the sender's end."""
        return PatchSender(route)

    @classmethod
    def receiver(cls, route: WeightRoute, index: int) -> ReceiverEnd:
        """Make the end of the receiver with this index."""
        return PatchReceiver(route, index)


class PatchSender(SenderEnd):
    """Keeps what it sent last."""

    def __init__(self, route: WeightRoute) -> None:
        super().__init__(route)
        self._exchange = Exchange(route)
        self._snapshot: dict[str, torch.Tensor] = {}
        self._identity = ""
        self._before: dict[str, int] = {}
        self._seen: set[str] = set()

    def _transfer(self, source: WeightSource, version: int) -> SyncReport:
        source = source.cast(self.route.dtype)
        answers = self._exchange.begin({"version": version})
        has = {(answer["snapshot"], answer["version"]) for answer in answers.values()}
        identity, self._identity = self._identity, ""  # Until this transfer has ended well there is no snapshot.
        full = not identity or has != {(identity, self.version)}
        self._before, self._seen = {}, set()
        count, payload = self._exchange.send(self._all(source) if full else self._changes(source))
        self._check_names()
        if full:
            identity = uuid.uuid4().hex
        refused = self._end(count, identity, full)
        if refused:
            full, identity = True, uuid.uuid4().hex
            self._exchange.post({"kind": "again"})
            count, more = self._exchange.send((f"{delta.DENSE}{name}", kept) for name, kept in self._snapshot.items())
            payload += more
            if self._end(count, identity, full):
                raise WeightSyncError("A receiver refused the whole weights.")
        self._exchange.commit()
        self._identity = identity
        sent = count if full else len(self._before)
        return SyncReport(
            kind=self.route.kind, version=version, tensors=sent, of=len(self._snapshot),
            payload_bytes=payload, full=full,
        )  # fmt: skip

    def _end(self, count: int, identity: str, full: bool) -> bool:
        """End a round; returns whether a receiver wants all weights."""
        trailer = {"count": count, "full": full, "snapshot": identity, "before": {} if full else self._before}
        return any(answer["kind"] == "again" for answer in self._exchange.end(trailer).values())

    def _all(self, source: WeightSource) -> Tensors:
        for name, tensor in source.tensors:
            self._seen.add(name)
            yield f"{delta.DENSE}{name}", self._keep(name, tensor)

    def _changes(self, source: WeightSource) -> Tensors:
        for name, tensor in source.tensors:
            self._seen.add(name)
            old = self._snapshot.get(name)
            if name in source.frozen and old is not None:
                continue
            if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
                raise WeightSyncError(f"{name} is not the tensor that it was: its shape or its type has changed.")
            new = tensor.detach().cpu().contiguous()
            change = delta.difference(old, new)
            if not change.positions.numel():
                continue
            share = change.positions.numel() / new.numel()
            if share > self.route.options.patch.dense_above or delta.encoded_bytes(change) >= new.nbytes:
                self._before[name] = 0
                yield f"{delta.DENSE}{name}", old.copy_(new)
                continue
            self._before[name] = change.before
            delta.apply(old, change)
            yield from delta.encode(name, change)

    def _keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        old = self._snapshot.get(name)
        if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
            old = self._snapshot[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return old.copy_(tensor.detach())

    def _check_names(self) -> None:
        lost = sorted(set(self._snapshot) - self._seen)
        if lost:
            self._snapshot = {}
            raise WeightSyncError(f"Tensors of the version before did not come: {', '.join(lost[:5])}.")

    def _abort(self, reason: str) -> None:
        self._exchange.abort(reason)

    def close(self) -> None:
        """Drop connections, memory and snapshot."""
        self._exchange.close()
        self._snapshot = {}


class PatchReceiver(ReceiverEnd):
    """Keeps the weights in use, and changes them in place once a patch is whole and fits."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        super().__init__(route, index)
        self._intake = Intake(route, index)
        self._current: dict[str, torch.Tensor] = {}
        self._identity = ""
        self._snapshot_version = -1

    def _stage(self, version: int) -> Received:
        self._intake.begin(version, {"snapshot": self._identity, "version": self._snapshot_version})
        parts = dict(self._intake.tensors(copy=True))
        if self._intake.asks_again(satisfied=self._intake.trailer["full"] or self._fits(parts)):
            parts = dict(self._intake.tensors(copy=True))
            self._intake.confirm()
        self._use(parts)
        self._identity, self._snapshot_version = self._intake.trailer["snapshot"], version
        return Received(tensors=self._current.items(), lasting=True)

    def _fits(self, parts: dict[str, torch.Tensor]) -> bool:
        """Whether the old elements are those that the sender saw."""
        for name, change in delta.decode(parts, self._intake.trailer["before"]).items():
            mine = self._current.get(name)
            if mine is None or int(change.positions[-1]) >= mine.numel():
                return False
            if delta.digest(delta.elements(mine)[change.positions], change.positions) != change.before:
                return False
        return True

    def _use(self, parts: dict[str, torch.Tensor]) -> None:
        dense = {key[len(delta.DENSE) :]: data for key, data in parts.items() if key.startswith(delta.DENSE)}
        if self._intake.trailer["full"]:
            self._current = dense
            return
        # What the next lines do cannot fail for want of data: everything is here and was checked.
        for name, data in dense.items():
            self._current[name].copy_(data)
        for name, change in delta.decode(parts, self._intake.trailer["before"]).items():
            delta.apply(self._current[name], change)

    def _loaded(self) -> None:
        """The snapshot itself is what the model was loaded from: there is nothing to let go."""

    def _abort(self, reason: str) -> None:
        self._intake.abort(reason)

    def close(self) -> None:
        """Drop the connection and the snapshot."""
        self._intake.close()
        self._current, self._identity = {}, ""
