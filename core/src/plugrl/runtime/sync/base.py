"""The contract of a weight syncer: one way in which the weights of one sender reach its receivers.

A transfer is a transaction. The receivers say what they have; the sender sends; each receiver says that it has all of
it; only then are all told to use it. Until then every receiver keeps the version before, so that whatever dies on the
way leaves the others at one version. A load that fails after that is the receiver's own: it keeps its old version
number, and the rollout refuses to generate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.source import Tensors, WeightSource

if TYPE_CHECKING:
    from plugrl.runtime.sync.route import WeightRoute


@dataclass(frozen=True, kw_only=True)
class SyncReport:
    """What a transfer was.

    kind: the syncer. tensors: how many were sent, ``of`` how many there are. payload_bytes: of the weights on their
    way to one receiver, names and messages not counted. full: False where the receivers' own weights were the base.
    """

    kind: str
    version: int
    tensors: int
    of: int
    payload_bytes: int
    full: bool = True


@dataclass(frozen=True, kw_only=True)
class Received:
    """The weights that arrived, on the host.

    lasting: the tensors stay as they are for as long as they are referred to by the model that was loaded from them,
    until it is loaded with the next version: parameters may point to them. Otherwise each is only good until the next
    one is taken from the iterator.
    """

    tensors: Tensors
    lasting: bool


Load: TypeAlias = Callable[[Received, int], None]
"""Puts the weights of a version into the live model."""


class SenderEnd(ABC):
    """The one end that has the weights. Connections and memory stay for the next transfer."""

    def __init__(self, route: WeightRoute) -> None:
        self.route = route
        self.version = -1

    def send(self, source: WeightSource, version: int) -> SyncReport:
        """Bring the weights to every receiver as ``version``; returns once all have them and were told to use them.

        Raises:
            WeightSyncError: a receiver died, refused or did not answer for ``route.timeout_s``; the others are told and
                keep what they had, and the next call starts afresh. What the source raises is raised as it is, after
                telling the receivers.
        """
        if version < self.version:
            raise WeightSyncError(f"Weights of version {version} after version {self.version}: versions never fall.")
        try:
            report = self._transfer(source, version)
        except BaseException as error:
            self._abort(f"{type(error).__name__}: {error}")
            raise
        self.version = version
        return report

    @abstractmethod
    def _transfer(self, source: WeightSource, version: int) -> SyncReport:
        """Do the transaction. Whatever it raises, :meth:`_abort` follows."""

    @abstractmethod
    def _abort(self, reason: str) -> None:
        """Tell the receivers that the transfer failed, and forget it; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Drop connections and memory."""


class ReceiverEnd(ABC):
    """One of the ends that get the weights; ``version`` is that of the last transfer which was loaded."""

    def __init__(self, route: WeightRoute, index: int) -> None:
        self.route = route
        self.index = index
        self.version = -1

    def apply(self, version: int, load: Load) -> None:
        """Wait for the weights of ``version`` and ``load`` them once every receiver has all of them.

        Raises:
            WeightSyncError: the sender died, gave up, sent another version or nothing for ``route.timeout_s``; then
                nothing was loaded. What ``load`` raises is raised as it is.
        """
        try:
            received = self._stage(version)
        except BaseException as error:
            self._abort(f"{type(error).__name__}: {error}")
            raise
        try:
            load(received, version)
        except BaseException as error:
            if not received.lasting:  # The transfer is still going on.
                self._abort(f"{type(error).__name__}: {error}")
            raise
        self._loaded()
        self.version = version

    @abstractmethod
    def _stage(self, version: int) -> Received:
        """Take part in the transaction and return the weights once they may be used."""

    @abstractmethod
    def _loaded(self) -> None:
        """Note that the live model no longer refers to the version before."""

    @abstractmethod
    def _abort(self, reason: str) -> None:
        """Tell the sender that this receiver gives up, and forget the transfer; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Drop connections and memory."""


class WeightSyncer(ABC):
    """A registered kind: it makes the two ends of a route."""

    @classmethod
    def problem(cls, route: WeightRoute) -> str | None:
        """Say why this kind cannot serve the route, None if it can."""
        return None

    @classmethod
    @abstractmethod
    def sender(cls, route: WeightRoute) -> SenderEnd:
        """Make the sender's end."""

    @classmethod
    @abstractmethod
    def receiver(cls, route: WeightRoute, index: int) -> ReceiverEnd:
        """Make the end of the receiver with this index."""
