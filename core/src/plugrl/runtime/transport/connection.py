"""The flows to one other endpoint, and what both ends owe each other: arenas they know, blocks they hold."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from plugrl.runtime.transport.address import Address
from plugrl.runtime.transport.segments import ArenaKey, Block, ForeignArena
from plugrl.runtime.transport.wire import Buffer, Flow

OnMessage = Callable[["Connection", tuple[Any, ...], Buffer, list[int]], None]


class Segment(NamedTuple):
    """A payload in shared memory as messages name it. ``lease`` says whose block it is: (uid of the owner, number)."""

    arena: ArenaKey
    arena_size: int
    offset: int
    size: int
    block: int
    with_descriptor: bool = False

    @property
    def lease(self) -> tuple[str, int]:
        """What the owner is told when the payload is in use no longer."""
        return self.arena[0], self.block


def segment_of(block: Block) -> Segment:
    """Return how messages name a block of this process."""
    return Segment(block.arena.key, block.arena.size, block.offset, block.size, block.number)


class Connection:
    """One or more flows; the first carries everything but large payloads without shared memory."""

    def __init__(self, peer: Address, ident: str, on_message: OnMessage, *, network: bool) -> None:
        self.peer = peer
        self.ident = ident
        self.network = network
        self.flows: list[Flow] = []
        self.known: set[ArenaKey] = set()
        """Arenas whose descriptor the other end has."""
        self.lent: set[int] = set()
        """Blocks of this process that the other end holds."""
        self.leased: set[tuple[str, int]] = set()
        """Blocks of others that the other end holds, in a process that passes them on."""
        self.arrived: dict[int, Buffer] = {}
        """Large payloads that came before their message."""
        self.lost: str | None = None
        self.goodbye: str | None = None
        """What the other end said before it went: empty when it may be connected to again."""
        self.order: list[int] = []
        """Index of each flow, on the side that was connected to."""
        self._on_message = on_message
        self._bulk = 0

    @property
    def control(self) -> Flow:
        """The flow of small messages."""
        return self.flows[0]

    def sort_flows(self) -> None:
        """Put the flow for control first."""
        if self.order and self.order[0] != 0 and 0 in self.order:
            place = self.order.index(0)
            self.order[0], self.order[place] = self.order[place], self.order[0]
            self.flows[0], self.flows[place] = self.flows[place], self.flows[0]

    def bulk(self) -> Flow:
        """Return a flow for a large payload, each in turn."""
        self._bulk += 1
        return self.flows[1 + self._bulk % (len(self.flows) - 1)]

    def send(
        self,
        message: tuple[Any, ...],
        payload: Sequence[Buffer] = (),
        segments: Sequence[tuple[Segment, int]] = (),
        deadline: float | None = None,
    ) -> None:
        """Write a message from a thread that may wait. ``segments`` go with the descriptors of their arenas.

        Raises FlowLost and RuntimeTimeout.
        """
        header, descriptors = self._header(message, segments)
        self.control.send(header, payload, descriptors, deadline)
        self.known.update(segment.arena for segment, _ in segments)

    def post(
        self, message: tuple[Any, ...], payload: Sequence[Buffer] = (), segments: Sequence[tuple[Segment, int]] = ()
    ) -> None:
        """Write a message without waiting; silent when the connection is gone."""
        if not self.flows:
            return
        header, descriptors = self._header(message, segments)
        self.control.post(header, payload, descriptors)
        self.known.update(segment.arena for segment, _ in segments)

    def _header(self, message: tuple[Any, ...], segments: Sequence[tuple[Segment, int]]) -> tuple[bytes, list[int]]:
        # An arena counts as known only once a message with its descriptor is on its way; until then it may go twice.
        sent: list[Segment] = []
        descriptors: list[int] = []
        for segment, descriptor in segments:
            first = segment.arena not in self.known and all(segment.arena != other.arena for other in sent)
            sent.append(segment._replace(with_descriptor=first))
            if first:
                descriptors.append(descriptor)
        return pickle.dumps((*message, [tuple(segment) for segment in sent]), protocol=5), descriptors

    def on_frame(self, flow: Flow, header: bytes, payload: Buffer, descriptors: list[int]) -> None:
        """Called by a flow, in the loop's thread."""
        self._on_message(self, pickle.loads(header), payload, descriptors)

    def close(self, reason: str) -> None:
        """End all flows; in the loop's thread."""
        for flow in self.flows:
            flow.close(reason)


class ArenaTable:
    """The arenas of others that this process was given, while their owner, or who passed them on, keeps them open."""

    def __init__(self) -> None:
        self._arenas: dict[ArenaKey, ForeignArena] = {}

    def take_up(self, rows: Sequence[tuple[Any, ...]], descriptors: list[int]) -> list[tuple[Segment, ForeignArena]]:
        """Return the segments of a message with their arenas; descriptors that came with it are kept or closed."""
        found = []
        for row in rows:
            segment = Segment(*row)
            arena = self._arenas.get(segment.arena)
            if segment.with_descriptor:
                fresh = ForeignArena(segment.arena, segment.arena_size, descriptors.pop(0))
                if arena is None:
                    arena = self._arenas[segment.arena] = fresh
            assert arena is not None, "an arena without a descriptor"
            found.append((segment, arena))
        return found

    def drop(self, keys: Sequence[ArenaKey]) -> None:
        """Forget arenas; payloads that are in use keep theirs mapped."""
        for key in keys:
            self._arenas.pop(key, None)

    def owned_by(self, uid: str) -> list[ArenaKey]:
        """Return the arenas of one owner."""
        return [key for key in self._arenas if key[0] == uid]

    def __len__(self) -> int:
        return len(self._arenas)
