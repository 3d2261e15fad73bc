"""The syncer ``bucket``: every tensor, in buckets, staged at the receivers until all of them have all."""

from __future__ import annotations

import torch

from plugrl.runtime.sync.base import Received, ReceiverEnd, SenderEnd, SyncReport, WeightSyncer
from plugrl.runtime.sync.exchange import Exchange, Intake
from plugrl.runtime.sync.route import WeightRoute
from plugrl.runtime.sync.source import Tensors, WeightSource


class BucketSyncer(WeightSyncer):
    """Whole tensors, cut where they are larger than a bucket. Two buckets alternate at the sender."""

    @classmethod
    def sender(cls, route: WeightRoute) -> SenderEnd:
        """Make the sender's end."""
        return BucketSender(route)

    @classmethod
    def receiver(cls, route: WeightRoute, index: int) -> ReceiverEnd:
        """Make the end of the receiver with this index."""
        return BucketReceiver(route, index)


class BucketSender(SenderEnd):
    """Sends frozen tensors only while a receiver lacks them."""

    def __init__(self, route: WeightRoute) -> None:
        super().__init__(route)
        self._exchange = Exchange(route)

    def _transfer(self, source: WeightSource, version: int) -> SyncReport:
        source = source.cast(self.route.dtype)
        answers = self._exchange.begin({"version": version})
        kept = source.frozen.intersection(*(answer["has"] for answer in answers.values()))
        skipped: list[str] = []
        count, payload = self._exchange.send(_without(source.tensors, kept, skipped))
        self._exchange.end({"count": count, "kept": skipped, "frozen": sorted(source.frozen)})
        self._exchange.commit()
        return SyncReport(
            kind=self.route.kind, version=version, tensors=count, of=count + len(skipped), payload_bytes=payload
        )

    def _abort(self, reason: str) -> None:
        self._exchange.abort(reason)

    def close(self) -> None:
        """Drop connections and memory."""
        self._exchange.close()


class BucketReceiver(ReceiverEnd):
    """Keeps the version in use and the memory of the one before, in which the next is staged."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        super().__init__(route, index)
        self._intake = Intake(route, index)
        self._current: dict[str, torch.Tensor] = {}
        self._staged: dict[str, torch.Tensor] = {}
        self._spare: dict[str, torch.Tensor] = {}
        self._frozen: tuple[str, ...] = ()

    def _stage(self, version: int) -> Received:
        if not self.route.options.bucket.staged:
            self._intake.begin(version, {"has": []})
            return Received(tensors=self._as_they_come(), lasting=False)
        self._intake.begin(version, {"has": self._frozen})
        spare, self._spare = self._spare, {}
        staged = dict(self._intake.tensors(copy=True, spare=spare))
        for name in self._intake.trailer["kept"]:
            staged[name] = self._current[name]
        self._frozen = tuple(name for name in self._intake.trailer["frozen"] if name in staged)
        self._intake.confirm()
        self._staged = staged
        return Received(tensors=staged.items(), lasting=True)

    def _as_they_come(self) -> Tensors:
        yield from self._intake.tensors(copy=False)
        self._intake.confirm()

    def _loaded(self) -> None:
        kept = {name for name, tensor in self._staged.items() if self._current.get(name) is tensor}
        self._spare = {name: tensor for name, tensor in self._current.items() if name not in kept}
        self._current, self._staged = self._staged, {}

    def _abort(self, reason: str) -> None:
        self._staged = {}
        self._intake.abort(reason)

    def close(self) -> None:
        """Drop the connection and the tensors."""
        self._intake.close()
        self._current, self._spare, self._staged = {}, {}, {}


def _without(tensors: Tensors, left_out: frozenset[str], skipped: list[str]) -> Tensors:
    """Yield the tensors that are not left out; the names of the others are added to ``skipped``."""
    for name, tensor in tensors:
        if name in left_out:
            skipped.append(name)
        else:
            yield name, tensor
