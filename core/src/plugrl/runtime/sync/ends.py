"""The two ends of a route, whatever its kind."""

from __future__ import annotations

from plugrl.runtime.sync.base import Load, ReceiverEnd, SenderEnd, SyncReport
from plugrl.runtime.sync.registry import get_weight_syncer
from plugrl.runtime.sync.route import WeightRoute
from plugrl.runtime.sync.source import Tensors, WeightSource


class WeightSender:
    """The sender of a route, see :class:`plugrl.runtime.sync.base.SenderEnd`."""

    def __init__(self, route: WeightRoute) -> None:
        self.route = route
        self._end: SenderEnd = get_weight_syncer(route.kind).sender(route)

    @property
    def version(self) -> int:
        """The last version that all receivers were told to use; -1 for none."""
        return self._end.version

    def send(self, source: WeightSource | Tensors, version: int) -> SyncReport:
        """Bring the weights to all receivers, see :meth:`plugrl.runtime.sync.base.SenderEnd.send`."""
        if not isinstance(source, WeightSource):
            source = WeightSource(tensors=source)
        return self._end.send(source, version)

    def close(self) -> None:
        """Drop connections and memory."""
        self._end.close()


class WeightReceiver:
    """A receiver of a route, see :class:`plugrl.runtime.sync.base.ReceiverEnd`."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        self.route = route
        self.index = index
        self._end: ReceiverEnd = get_weight_syncer(route.kind).receiver(route, index)

    @property
    def version(self) -> int:
        """The last version that was loaded; -1 for none."""
        return self._end.version

    def apply(self, version: int, load: Load) -> None:
        """Wait for a version and load it, see :meth:`plugrl.runtime.sync.base.ReceiverEnd.apply`."""
        self._end.apply(version, load)

    def close(self) -> None:
        """Drop connections and memory."""
        self._end.close()
