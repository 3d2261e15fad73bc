"""Placements made in Python instead of by the grammar."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from plugrl.runtime.placement.errors import PlacementError, Wrong
from plugrl.runtime.placement.form import ComponentPlacement, make_component
from plugrl.runtime.placement.grammar import Processes
from plugrl.runtime.placement.layout import NODE, Layout
from plugrl.runtime.placement.resolve import read_groups


class PlacementStrategy(ABC):
    """Puts the processes of one component on a cluster."""

    def place(self, layout: Layout) -> ComponentPlacement:
        """Return where each process runs. Raises PlacementError, whose path is the name of the strategy's class."""
        try:
            return self._place(layout)
        except Wrong as wrong:
            raise PlacementError([(type(self).__name__, wrong.code, str(wrong))], wrong.wanted) from None

    @abstractmethod
    def _place(self, layout: Layout) -> ComponentPlacement:
        """Do as :meth:`place`, but raise Wrong."""


@dataclass(frozen=True)
class PackedPlacementStrategy(PlacementStrategy):
    """A range of resources, cut into processes of equal size.

    The range is cut into blocks of ``num_hardware_per_process * stride`` resources; within a block, process j takes
    every ``stride``-th resource from j on. Eight resources with two for each process and a stride of 2 give
    ``[0, 2] [1, 3] [4, 6] [5, 7]``.

    Args:
        start, end: first and last resource, counted within the groups.
        num_hardware_per_process: resources of each process.
        stride: distance between the resources of a process.
        node_group: a label, several with commas or in a list; the whole cluster when omitted.
        isolate: a process sees its own devices alone, instead of all of its node.
    """

    start: int
    end: int
    num_hardware_per_process: int = 1
    stride: int = 1
    node_group: str | Sequence[str] | None = None
    isolate: bool = True

    def _place(self, layout: Layout) -> ComponentPlacement:
        for name in ("num_hardware_per_process", "stride"):
            if getattr(self, name) < 1:
                raise Wrong("range", f"{name} is {getattr(self, name)}: it must be at least 1.")
        if self.start > self.end:
            raise Wrong("descending", f"{self.start}-{self.end} counts down.")
        groups = read_groups(layout, self.node_group)
        block = self.num_hardware_per_process * self.stride
        count = self.end - self.start + 1
        if count % block:
            size = f"num_hardware_per_process {self.num_hardware_per_process} x stride {self.stride}"
            raise Wrong("indivisible", f"{count} resources do not divide into blocks of {block} ({size}).")
        processes = tuple(
            tuple(range(first + offset, first + block, self.stride))
            for first in range(self.start, self.end + 1, block)
            for offset in range(self.stride)
        )
        return make_component(layout, groups, processes, isolate=self.isolate)


@dataclass(frozen=True)
class FlexiblePlacementStrategy(PlacementStrategy):
    """The resources of each process, one by one; those of a process are unique and lie on one node.

    Args:
        ranks_per_process: resources of each process, counted within the groups.
        node_group, isolate: as of :class:`PackedPlacementStrategy`.
    """

    ranks_per_process: Sequence[Sequence[int]]
    node_group: str | Sequence[str] | None = None
    isolate: bool = True

    def _place(self, layout: Layout) -> ComponentPlacement:
        if not self.ranks_per_process:
            raise Wrong("empty", "there is no process.")
        for rank, ranks in enumerate(self.ranks_per_process):
            if len(set(ranks)) != len(ranks):
                raise Wrong("duplicate", f"rank {rank} names a resource twice: {list(ranks)}.")
        processes: Processes = tuple(tuple(sorted(ranks)) for ranks in self.ranks_per_process)
        return make_component(layout, read_groups(layout, self.node_group), processes, isolate=self.isolate)


@dataclass(frozen=True)
class NodePlacementStrategy(PlacementStrategy):
    """A process on each of the listed nodes, without a device; a node that is listed twice gets two."""

    node_ranks: Sequence[int]

    def _place(self, layout: Layout) -> ComponentPlacement:
        if not self.node_ranks:
            raise Wrong("empty", "there is no process.")
        return make_component(layout, (NODE,), tuple((rank,) for rank in self.node_ranks))
