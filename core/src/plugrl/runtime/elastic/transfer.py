"""The driver's part in moving a state: who sends what to whom, and whether all of it arrived as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.errors import PlugRLError
from plugrl.runtime.deadline import Deadline
from plugrl.runtime.handle import wait_together

if TYPE_CHECKING:
    from plugrl.engines.state import Block, StateSpec
    from plugrl.runtime.elastic.moving import StateOffer
    from plugrl.runtime.group import WorkerGroup
    from plugrl.runtime.handle import Handle

    Specs = Mapping[str, StateSpec]

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a state looked like when the new ranks made room for it, and the blocks that each of them wants."""

    specs: Specs
    wants: Sequence[Sequence[Block]]


class Preparation:
    """The new ranks learn what is coming and make room for it while the old ones still work.

    Memory that is written for the first time costs more than what is then copied into it.
    """

    def __init__(self, old: WorkerGroup, new: WorkerGroup) -> None:
        self._new = new
        self._specs: dict[str, StateSpec] = {}
        self._describing: Handle[list[Specs]] = old.execute("describe_state")
        self._wanting: Handle[list[Any]] | None = None

    def done(self) -> bool:
        """Whether :meth:`wait` would not block. Raises what made it impossible."""
        if self._wanting is None and self._describing.done():
            self._ask(0.0)
        return self._wanting is not None and self._wanting.done()

    def wait(self, timeout: float) -> Room:
        """Return what the new ranks want. Raises what made it impossible."""
        deadline = Deadline(timeout, None)
        if self._wanting is None:
            self._ask(deadline.left(timeout))
        assert self._wanting is not None
        return Room(specs=self._specs, wants=wait_together([self._wanting], deadline.remaining())[0])

    def _ask(self, timeout: float) -> None:
        self._specs = {key: spec for specs in self._describing.wait(timeout) for key, spec in specs.items()}
        self._wanting = self._new.execute("want_state", self._specs)


def move_state(old: WorkerGroup, new: WorkerGroup, room: Room, timeout: float) -> None:
    """Bring the state of an idle group to another one of any size; every rank talks to every other directly.

    The first rank on either side that fails ends it: the old ranks are then free again. Raises PlugRLError when the new
    ranks do not have, to the bit, what the old ones have, and whatever a wait raises.
    """
    from plugrl.runtime.elastic.moving import Share

    deadline = Deadline(timeout, None)
    offers: list[StateOffer] = old.execute("offer_state").wait(deadline.remaining())
    specs: dict[str, StateSpec] = {key: spec for offer in offers for key, spec in offer.specs.items()}
    wants = room.wants
    if specs != room.specs:  # An optimizer has no moments before its first step.
        wants = wait_together([new.execute("want_state", specs)], deadline.remaining())[0]
    ways = plan_ways([offer.blocks for offer in offers], wants)
    here, there = _addresses(old, deadline), _addresses(new, deadline)
    tag = f"state:{old.name}.{old.generation}.{new.generation}"
    left = deadline.left(timeout)
    receiving = new.execute("receive_state", tag=tag, timeout=left, per_rank=[
        (([Share(address=here[i], blocks=ways[i, j]) for i in range(old.size) if (i, j) in ways],), {})
        for j in range(new.size)
    ])  # fmt: skip
    sending = old.execute("send_state", tag=tag, timeout=left, per_rank=[
        (([Share(address=there[j], blocks=ways[i, j]) for j in range(new.size) if (i, j) in ways],), {})
        for i in range(old.size)
    ])  # fmt: skip
    sent, _ = wait_together([sending, receiving], deadline.remaining())
    problems = [problem for problem in sent if problem is not None]
    if problems:
        raise PlugRLError(f"The state could not be sent: {'; '.join(problems)}")
    values = offers[0].values
    taken = wait_together([new.execute("take_over_state", values)], deadline.remaining())[0]
    _compare(offers, taken)


def plan_ways(
    offered: Sequence[Sequence[Block]], wanted: Sequence[Sequence[Block]]
) -> dict[tuple[int, int], tuple[Block, ...]]:
    """Return the blocks that rank i of the one side sends to rank j of the other, by (i, j).

    Raises PlugRLError when nobody has some of what is wanted.
    """
    by_key: dict[str, list[tuple[int, Block]]] = {}
    for i, blocks in enumerate(offered):
        for block in blocks:
            by_key.setdefault(block.key, []).append((i, block))
    ways: dict[tuple[int, int], list[Block]] = {}
    for j, blocks in enumerate(wanted):
        for want in blocks:
            missing = want.count
            for i, block in by_key.get(want.key, []):
                common = block.common(want)
                if common is not None:
                    ways.setdefault((i, j), []).append(common)
                    missing -= common.count
            if missing:
                raise PlugRLError(f"{missing} elements of {want.key} are offered by no rank, or by several.")
    return {pair: tuple(blocks) for pair, blocks in ways.items()}


def _addresses(group: WorkerGroup, deadline: Deadline) -> list[str]:
    """Return the endpoint of each rank of this very generation."""
    directory = group.session.directory
    return [
        directory.lookup(
            f"endpoint/{group.name}/{group.generation}/{rank}", deadline.remaining(), what=f"{group.name} rank {rank}"
        )
        for rank in range(group.size)
    ]


def _compare(offers: Sequence[StateOffer], taken: Sequence[StateOffer]) -> None:
    """Raise PlugRLError unless both sides have the same values; random states are compared where both have the rank."""
    from plugrl.engines.state import RANDOM, add_checksums

    before, after = (add_checksums(offer.sums for offer in side) for side in (offers, taken))
    one_sided = {key for key in before.keys() ^ after.keys() if key.startswith(RANDOM)}
    keys = (before.keys() | after.keys()) - one_sided
    wrong = sorted(key for key in keys if before.get(key) != after.get(key))
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise PlugRLError(f"The new workers have other values: {', '.join(wrong[:_SHOWN])}{more}.")
    for rank, offer in enumerate(taken):
        differing = _different(offers[0].values, offer.values)
        if differing:
            raise PlugRLError(f"Rank {rank} of the new workers has another state: {', '.join(differing)}.")


def _different(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
