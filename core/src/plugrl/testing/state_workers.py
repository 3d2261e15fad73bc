"""A worker whose state can be moved, without an engine: a vector that its ranks share out, and a counter."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from plugrl.engines.state import Block, EngineState, Piece, StateParts, StateSpec
from plugrl.runtime.elastic.moving import Share, StateWorker

_LONG_S = 600.0


class VectorWorker(StateWorker):
    """Rank r holds its part of a vector of ``length`` elements, and from the second step on that of the step before.

    In the method ``fails_in`` the last rank raises, and the others wait for it as those of a collective call do.
    """

    process_group: ClassVar[bool] = False

    def __init__(self, length: int, fails_in: str = "") -> None:
        self.length = length
        self.fails_in = fails_in
        self.steps = 0

    def setup(self) -> None:
        """Begin with 0, 1, 2, ..."""
        self._may_fail("setup")
        vector = torch.arange(self.length, dtype=torch.float64)
        self.parts = {"vector": vector.tensor_split(self.world_size)[self.rank].clone()}

    def step(self) -> tuple[int, int, list[float]]:
        """Change every element; returns generation, steps so far and the part."""
        self.steps += 1
        if self.steps > 1:
            self.parts["before"] = self.parts["vector"].clone()
        self.parts["vector"].mul_(1.5).add_(self.steps)
        return self.context.generation, self.steps, self.parts["vector"].tolist()

    def before(self) -> list[float]:
        """Return the part of the step before."""
        values: list[float] = self.parts["before"].tolist()
        return values

    def export_state(self) -> EngineState:
        """The parts."""
        spec = StateSpec.of(torch.empty(self.length, dtype=torch.float64))
        pieces = [Piece(block, spec, part) for key, part in self.parts.items() for block in self._own(key)]
        return EngineState(pieces=pieces, values={"steps": self.steps})

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """The parts of this rank."""
        self._may_fail("want_state")
        return [block for key in specs for block in self._own(key)]

    def receive_state(self, shares: Sequence[Share], tag: str, timeout: float) -> None:
        """As every worker does."""
        self._may_fail("receive_state")
        super().receive_state(shares, tag, timeout)

    def import_state(self, parts: StateParts, values: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._may_fail("take_over_state")
        self.parts = {block.key: parts.read(block).clone() for key in parts.specs for block in self._own(key)}
        self.steps = values["steps"]

    def _may_fail(self, method: str) -> None:
        if self.fails_in == method:
            if self.rank == self.world_size - 1:
                raise OSError("no room")
            time.sleep(_LONG_S)

    def _own(self, key: str) -> list[Block]:
        parts = torch.arange(self.length).tensor_split(self.world_size)
        offset = sum(len(part) for part in parts[: self.rank])
        size = len(parts[self.rank])
        return [Block(key, (offset,), (size,))] if size else []
