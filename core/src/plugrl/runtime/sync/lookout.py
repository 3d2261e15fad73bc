"""Whether the other end of a route may still come, asked in every wait that no connection ends."""

from __future__ import annotations

from collections.abc import Iterable

from plugrl.runtime.losses import loss_of
from plugrl.runtime.sync.frames import Closed
from plugrl.runtime.sync.route import WeightRoute

LOOK_EVERY_S = 0.5


class Lookout:
    """Knows who the ends of a route are; of a route that does not say so nobody is ever missed."""

    def __init__(self, route: WeightRoute | None = None) -> None:
        self._sender = route.sender if route is not None else None
        self._receivers = route.receiver_launch if route is not None else None

    def for_receivers(self, indices: Iterable[int]) -> None:
        """Raise Closed when one of these receivers is lost."""
        if self._receivers is None:
            return
        for index in indices:
            reason = loss_of(self._receivers, index)
            if reason:
                raise Closed(f"Receiver {index} is lost. {reason}")

    def for_sender(self) -> None:
        """Raise Closed when the sender is lost."""
        if self._sender is None:
            return
        reason = loss_of(*self._sender)
        if reason:
            raise Closed(f"The sender is lost. {reason}")
