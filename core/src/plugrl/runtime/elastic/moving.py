"""A worker's part in moving its state: what it gives, what it wants, and the way between the two."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plugrl.engines.state import Block, EngineState, StateParts, StateSpec, checksums
from plugrl.errors import PlugRLError, one_line
from plugrl.runtime import transport
from plugrl.runtime.worker import Worker

_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class StateOffer:
    """What one rank has of a state: blocks with the wholes they are of, plain values, and sums over its blocks."""

    blocks: tuple[Block, ...]
    specs: Mapping[str, StateSpec]
    values: Mapping[str, Any]
    sums: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Share:
    """The blocks that go between two ranks; ``address`` is the endpoint of the other one."""

    address: str
    blocks: tuple[Block, ...]


class StateWorker(Worker):
    """A worker whose state can go to another number of ranks while it runs.

    A derived class says what the state is; the rest is done here, called by
    :func:`plugrl.runtime.elastic.transfer.move_state`.
    """

    _offered: Mapping[str, list[tuple[Block, Any]]] | None = None
    _parts: StateParts | None = None

    # ----------------------------------------------------------------- what a derived class says
    @abstractmethod
    def export_state(self) -> EngineState:
        """Return this rank's share of the state. Collective."""

    @abstractmethod
    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """Return the blocks that this rank needs of a state whose wholes are ``specs``."""

    @abstractmethod
    def import_state(self, parts: StateParts, values: Mapping[str, Any]) -> None:
        """Take over a state. Collective."""

    # ----------------------------------------------------------------- what the driver calls
    def settle(self) -> None:
        """Answer when everything that was called before is done; drop what was kept for a hand-over."""
        self._offered = self._parts = None

    def offer_state(self) -> StateOffer:
        """Say what this rank has; the values stay where they are until they are sent. Collective."""
        state = self.export_state()
        offered: dict[str, list[tuple[Block, Any]]] = {}
        for piece in state.pieces:
            offered.setdefault(piece.block.key, []).append((piece.block, piece.tensor))
        self._offered = offered
        return StateOffer(
            blocks=tuple(piece.block for piece in state.pieces),
            specs={piece.block.key: piece.spec for piece in state.pieces},
            values=state.values,
            sums=checksums(state.pieces),
        )

    def describe_state(self) -> dict[str, StateSpec]:
        """Say what the tensors of which this rank has a share are, without a look at their values. Collective."""
        return {piece.block.key: piece.spec for piece in self.export_state().pieces}

    def want_state(self, specs: Mapping[str, StateSpec]) -> tuple[Block, ...]:
        """Say what this rank wants, and make room for it."""
        blocks = tuple(dict.fromkeys(self.wanted_state(specs)))
        self._parts = StateParts(specs, blocks)
        return blocks

    def send_state(self, shares: Sequence[Share], tag: str, timeout: float) -> str | None:
        """Send each rank its share. Returns what went wrong: a receiver that is lost is no failure of this worker."""
        assert self._offered is not None
        try:
            for share in shares:
                for bundle in _bundles(share.blocks, self._bytes_of):
                    values = [self._values_of(block) for block in bundle]
                    transport.current().send(share.address, values, tag, timeout=timeout)
        except PlugRLError as error:
            return one_line(error)
        return None

    def receive_state(self, shares: Sequence[Share], tag: str, timeout: float) -> None:
        """Take what the other ranks send."""
        assert self._parts is not None
        for share in shares:
            for bundle in _bundles(share.blocks, self._bytes_of):
                values = transport.current().recv(share.address, tag, timeout=timeout)
                for block, tensor in zip(bundle, values, strict=True):
                    self._parts.fill(block, tensor)

    def take_over_state(self, values: Mapping[str, Any]) -> StateOffer:
        """Go on from what was received, and say what this rank has now. Collective."""
        assert self._parts is not None
        self.import_state(self._parts, values)
        self._parts = None
        offer = self.offer_state()
        self._offered = None
        return offer

    def _bytes_of(self, block: Block) -> int:
        if self._parts is not None:
            return block.count * self._parts.specs[block.key].torch_dtype.itemsize
        assert self._offered is not None
        return block.count * int(self._offered[block.key][0][1].element_size())

    def _values_of(self, wanted: Block) -> Any:
        assert self._offered is not None
        for block, tensor in self._offered[wanted.key]:
            if block.common(wanted) == wanted:
                # Where the receiver keeps it is the receiver's business; it is the host that both can reach.
                return tensor.detach()[wanted.within(block)].cpu()
        raise PlugRLError(f"{wanted} is not among what this rank offered.")


def _bundles(blocks: Sequence[Block], bytes_of: Any) -> Iterator[list[Block]]:
    """Cut a list of blocks into messages; both ends do it alike."""
    bundle: list[Block] = []
    size = 0
    for block in blocks:
        if bundle and size + bytes_of(block) > _MESSAGE_BYTES:
            yield bundle
            bundle, size = [], 0
        bundle.append(block)
        size += bytes_of(block)
    if bundle:
        yield bundle
