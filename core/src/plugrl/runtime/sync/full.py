"""The syncer ``full``: the whole state as one object. Nothing is cut, packed or shared: what the others must equal."""

from __future__ import annotations

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.base import Received, ReceiverEnd, SenderEnd, SyncReport, WeightSyncer
from plugrl.runtime.sync.lookout import Lookout
from plugrl.runtime.sync.route import WeightRoute
from plugrl.runtime.sync.source import WeightSource
from plugrl.runtime.sync.store_link import StoreInlet, StoreOutlet


class FullSyncer(WeightSyncer):
    """One object in Ray's object store for all receivers."""

    @classmethod
    def sender(cls, route: WeightRoute) -> SenderEnd:
        """Make the sender's end."""
        return FullSender(route)

    @classmethod
    def receiver(cls, route: WeightRoute, index: int) -> ReceiverEnd:
        """Make the end of the receiver with this index."""
        return FullReceiver(route, index)


class FullSender(SenderEnd):
    """Gathers everything on the host, then sends it."""

    def __init__(self, route: WeightRoute) -> None:
        super().__init__(route)
        self._outlet = StoreOutlet(route.mailbox, range(route.receivers), route.timeout_s, Lookout(route))

    def _transfer(self, source: WeightSource, version: int) -> SyncReport:
        state = {name: tensor.detach().cpu() for name, tensor in source.cast(self.route.dtype).tensors}
        self._outlet.begin({"kind": "begin", "version": version})
        self._outlet.publish([], state)
        self._outlet.end({"kind": "end"})
        self._outlet.commit()
        size = sum(tensor.nbytes for tensor in state.values())
        return SyncReport(
            kind=self.route.kind, version=version, tensors=len(state), of=len(state), payload_bytes=size
        )

    def _abort(self, reason: str) -> None:
        self._outlet.abort(reason)

    def close(self) -> None:
        """Do nothing: there is no connection."""


class FullReceiver(ReceiverEnd):
    """Takes the object."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        super().__init__(route, index)
        self._inlet = StoreInlet(route.mailbox, index, route.timeout_s, Lookout(route))

    def _stage(self, version: int) -> Received:
        self._inlet.begin(version)
        self._inlet.send({"kind": "ready"})
        objects = [content for _, content in self._inlet.objects()]
        if len(objects) != 1:
            raise WeightSyncError(f"{len(objects)} states came instead of one.")
        self._inlet.send({"kind": "whole"})
        self._inlet.receive()
        # A copy, because objects of the store are read-only and go when nobody refers to them as such.
        state: dict[str, torch.Tensor] = {name: tensor.clone() for name, tensor in objects[0].items()}
        return Received(tensors=state.items(), lasting=True)

    def _loaded(self) -> None:
        """Nothing is kept."""

    def _abort(self, reason: str) -> None:
        self._inlet.abort(reason)

    def close(self) -> None:
        """Do nothing: there is no connection."""
