"""A worker whose state can be moved, without an engine: a vector that its ranks share out, and a counter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from plugrl.engines.state import Block, EngineState, Piece, StateParts, StateSpec
from plugrl.runtime.elastic.moving import StateWorker


class VectorWorker(StateWorker):
    """Rank r holds its part of a vector of ``length`` elements."""

    process_group: ClassVar[bool] = False

    def __init__(self, length: int) -> None:
        self.length = length
        self.steps = 0

    def setup(self) -> None:
        """Begin with 0, 1, 2, ..."""
        self.part = torch.arange(self.length, dtype=torch.float64).tensor_split(self.world_size)[self.rank].clone()

    def step(self) -> tuple[int, int, list[float]]:
        """Change every element; returns generation, steps so far and the part."""
        self.steps += 1
        self.part.mul_(1.5).add_(self.steps)
        return self.context.generation, self.steps, self.part.tolist()

    def export_state(self) -> EngineState:
        """The part."""
        spec = StateSpec.of(torch.empty(self.length, dtype=torch.float64))
        pieces = [Piece(block, spec, self.part) for block in self._own()]
        return EngineState(pieces=pieces, values={"steps": self.steps})

    def wanted_state(self, specs: Mapping[str, StateSpec]) -> Sequence[Block]:
        """The part of this rank."""
        return self._own()

    def import_state(self, parts: StateParts, values: Mapping[str, Any]) -> None:
        """Go on from there."""
        for block in self._own():
            self.part = parts.read(block).clone()
        self.steps = values["steps"]

    def _own(self) -> list[Block]:
        parts = torch.arange(self.length).tensor_split(self.world_size)
        offset = sum(len(part) for part in parts[: self.rank])
        size = len(parts[self.rank])
        return [Block("vector", (offset,), (size,))] if size else []
