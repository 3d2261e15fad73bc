"""The syncer ``handle``: the sender writes an image of its weights into shared memory, the receivers map it.

There is one copy on a node, whatever the number of receivers: a rollout on the host computes with the mapped memory
itself (its parameters are frozen copies that nobody trains, so they may as well be views), one on a device copies from
it. At least two images alternate, and both ends keep them mapped: what is left of a transfer is that copy, which
several threads do, and a few messages. An image is never written while a receiver may still use it: each receiver says
which ones it holds when a transfer begins, and one that has not been heard of holds what it held.
"""

from __future__ import annotations

from collections.abc import Collection

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.base import Received, ReceiverEnd, SenderEnd, SyncReport, WeightSyncer
from plugrl.runtime.sync.copier import Copier
from plugrl.runtime.sync.image import ImageReader, ImageWriter, Layout
from plugrl.runtime.sync.lookout import Lookout
from plugrl.runtime.sync.meeting import PeerClient, PeerServer
from plugrl.runtime.sync.route import WeightRoute
from plugrl.runtime.sync.source import WeightSource, specs_of

_IMAGES = 2


class HandleSyncer(WeightSyncer):
    """For receivers on the sender's node."""

    @classmethod
    def problem(cls, route: WeightRoute) -> str | None:
        """Receivers on other nodes cannot map the memory."""
        if route.remote:
            return f"receivers {', '.join(map(str, route.remote))} do not share the sender's node"
        return None

    @classmethod
    def sender(cls, route: WeightRoute) -> SenderEnd:
        """Make the sender's end."""
        return HandleSender(route)

    @classmethod
    def receiver(cls, route: WeightRoute, index: int) -> ReceiverEnd:
        """Make the end of the receiver with this index."""
        return HandleReceiver(route, index)


class HandleSender(SenderEnd):
    """Owns the images."""

    def __init__(self, route: WeightRoute) -> None:
        super().__init__(route)
        self._server = PeerServer(route.socket_path, route.local, route.timeout_s, lookout=Lookout(route))
        self._images: dict[int, ImageWriter] = {}
        self._held: dict[int, set[int]] = {index: set() for index in route.local}
        self._next = 0
        self._known: dict[object, set[int]] = {}
        self._copier = Copier()

    def _transfer(self, source: WeightSource, version: int) -> SyncReport:
        if source.specs is None:
            tensors = list(source.tensors)
            source = WeightSource(tensors=tensors, frozen=source.frozen, specs=specs_of(tensors))
        assert source.specs is not None
        specs = tuple(spec.cast(self.route.dtype) for spec in source.specs)
        self._server.gather()
        self._server.post({"kind": "begin", "version": version, "images": sorted(self._images)})
        self._held |= {index: set(answer["held"]) for index, answer in self._server.answers().items()}
        image = self._free_image(Layout(specs))
        copied, payload = self._write(image, source, version)
        self._offer(image, version)
        for index in self._server.answers():
            self._held[index].add(image.number)
        self._server.commit()
        return SyncReport(
            kind=self.route.kind, version=version, tensors=copied, of=len(specs), payload_bytes=payload
        )

    def _free_image(self, layout: Layout) -> ImageWriter:
        """Return an image that nobody holds; those that are of no more use are let go."""
        held = set().union(*self._held.values())
        free = [image for number, image in self._images.items() if number not in held]
        fitting = [image for image in free if image.layout.checksum == layout.checksum]
        chosen = fitting[0] if fitting else ImageWriter(self._next, layout)
        if not fitting:
            self._next += 1
        self._images[chosen.number] = chosen
        for image in free:
            if image is not chosen and (len(self._images) > _IMAGES or image not in fitting):
                self._images.pop(image.number).close()
        return chosen

    def _write(self, image: ImageWriter, source: WeightSource, version: int) -> tuple[int, int]:
        """Copy the weights into the image and seal it; returns how many tensors were copied, and their bytes.

        The copy casts: a cast before it would be one more pass over the memory.
        """
        before = image.version
        image.open()
        missing = dict(image.tensors)
        copied = payload = 0
        for name, tensor in source.tensors:
            place = missing.pop(name, None)
            if place is None or place.shape != tensor.shape:
                raise WeightSyncError(f"Tensor {name!r} was not announced as it is, or was sent twice.")
            if name in source.frozen and before >= 0:
                continue
            self._copier.copy(place, tensor.detach())
            copied, payload = copied + 1, payload + place.nbytes
        if missing:
            raise WeightSyncError(f"Tensors that were announced did not come: {', '.join(list(missing)[:5])}.")
        image.seal(version)
        return copied, payload

    def _offer(self, image: ImageWriter, version: int) -> None:
        """Tell every receiver which image to use; one that does not have it yet gets its descriptor."""
        self._known = {peer: self._known.get(peer, set()) for peer in self._server.peers.values()}
        for peer in self._server.peers.values():
            new = image.number not in self._known[peer]
            message = {"kind": "image", "number": image.number, "version": version, "new": new}
            peer.send({**message, "layout": image.layout.to_list()} if new else message, self.route.timeout_s)
            if new:
                peer.send_descriptor(image.descriptor, self.route.timeout_s)
                self._known[peer].add(image.number)

    def _abort(self, reason: str) -> None:
        self._server.abort(reason)

    def close(self) -> None:
        """Drop connections and images; the receivers keep what they map."""
        self._server.close()
        for image in self._images.values():
            image.close()
        self._images = {}
        self._copier.close()


class HandleReceiver(ReceiverEnd):
    """Maps the images."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        super().__init__(route, index)
        self._client = PeerClient(
            route.socket_path, index, route.timeout_s, lambda peer: self._keep(()), Lookout(route)
        )
        self._readers: dict[int, ImageReader] = {}
        self._held: list[int] = []

    def _stage(self, version: int) -> Received:
        announced = self._client.begin(version)
        self._keep(announced["images"])
        self._client.send({"kind": "ready", "held": self._held})
        for number, reader in self._readers.items():
            if number not in self._held:
                reader.refresh()
        message = self._client.receive()
        number = message["number"]
        if message["new"]:
            descriptor = self._client.peer.receive_descriptor(self.route.timeout_s)
            self._readers[number] = ImageReader(descriptor, Layout.from_list(message["layout"]))
        tensors = self._readers[number].tensors(version)
        self._client.send({"kind": "whole"})
        if self._client.receive()["kind"] != "commit":
            raise WeightSyncError("The sender went on where the end of the transfer was expected.")
        # Until the load has ended well the model may refer to the image before, to this one, or to both.
        self._held.append(number)
        return Received(tensors=tensors.items(), lasting=True)

    def _loaded(self) -> None:
        self._held = self._held[-1:]

    def _abort(self, reason: str) -> None:
        self._client.abort(reason)

    def close(self) -> None:
        """Drop the connection; the memory goes with the last tensor that refers to it."""
        self._client.drop()
        self._keep(())

    def _keep(self, numbers: Collection[int]) -> None:
        """Close the descriptors of all other images: the sender will offer those no more."""
        for number in [number for number in self._readers if number not in numbers]:
            self._readers.pop(number).close()
