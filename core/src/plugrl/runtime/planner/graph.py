"""The component graph as bits: sets of components are integers whose bit i stands for the component of index i."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

Edges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Shape:
    """How the components of one phase are cut into stages, which stand in ascending order of their smallest index.

    ``paths`` are the ways from a source to a sink of the stage graph, as positions of stages.
    """

    stages: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    @property
    def is_single(self) -> bool:
        """Whether each stage has one component."""
        return all(stage & (stage - 1) == 0 for stage in self.stages)

    @cached_property
    def is_chain(self) -> bool:
        """Whether one path leads through all stages, so that no other can take longer."""
        return len(self.paths) == 1 and len(self.paths[0]) == len(self.stages)


def pipe_time(paths: Sequence[Sequence[int]], times: Sequence[int], chunks: int) -> int:
    """Return the time in which a pipeline of stages processes ``chunks`` chunks, with unlimited buffers between them.

    Args:
        paths: every way from a source to a sink, as positions of stages.
        times: the time of each stage for one chunk.
        chunks: how many chunks flow through, at least 1.
    """
    longest = 0
    for path in paths:
        taken = [times[stage] for stage in path]
        longest = max(longest, sum(taken) + (chunks - 1) * max(taken))
    return longest


def members(group: int) -> list[int]:
    """Return the indices in a set, ascending."""
    return [i for i in range(group.bit_length()) if group >> i & 1]


def down_closed_sets(count: int, edges: Edges) -> list[int]:
    """Return every set that holds, with a component, all that come before it in the graph; the smaller sets first."""
    before = [0] * count
    for u, v in edges:
        before[v] |= 1 << u
    closed = [
        group for group in range(1 << count) if all(before[i] & ~group == 0 for i in range(count) if group >> i & 1)
    ]
    return sorted(closed, key=lambda group: (group.bit_count(), group))


def shapes(group: int, edges: Edges) -> Iterator[Shape]:
    """Yield every cut of a set into the stages of one phase: acyclic, and one stage only for one component."""
    inner = [(u, v) for u, v in edges if group >> u & 1 and group >> v & 1]
    for stages in _partitions(members(group)):
        if len(stages) == 1 and group & (group - 1):
            continue
        paths = stage_paths(stages, inner)
        if paths is not None:
            yield Shape(stages, paths)


def stage_paths(stages: Sequence[int], edges: Edges) -> tuple[tuple[int, ...], ...] | None:
    """Return the paths from sources to sinks of the stage graph, None if it has a cycle."""
    after = stage_arcs(stages, edges)
    sources = [i for i in range(len(stages)) if not any(i in following for following in after)]
    paths: list[tuple[int, ...]] = []
    open_paths: list[tuple[int, ...]] = [(source,) for source in sources]
    while open_paths:
        path = open_paths.pop()
        following = sorted(after[path[-1]])
        if any(stage in path for stage in following):
            return None
        if not following:
            paths.append(path)
        open_paths += [(*path, stage) for stage in following]
    reached = {stage for path in paths for stage in path}
    return tuple(sorted(paths)) if len(reached) == len(stages) else None


def stage_arcs(stages: Sequence[int], edges: Edges) -> list[set[int]]:
    """Return for each stage the stages that consume what it produces."""
    place = {i: position for position, stage in enumerate(stages) for i in members(stage)}
    after: list[set[int]] = [set() for _ in stages]
    for u, v in edges:
        if u in place and v in place and place[u] != place[v]:
            after[place[u]].add(place[v])
    return after


def _partitions(indices: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield every partition as sets in ascending order of their smallest index."""
    if not indices:
        yield ()
        return
    first, rest = indices[0], indices[1:]
    for taken in range(1 << len(rest)):
        stage = 1 << first
        left = []
        for position, i in enumerate(rest):
            if taken >> position & 1:
                stage |= 1 << i
            else:
                left.append(i)
        for others in _partitions(left):
            yield (stage, *others)
