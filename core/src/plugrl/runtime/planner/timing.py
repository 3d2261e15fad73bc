"""How long flows take: closed formulas that agree exactly with what an event simulation gives.

Times may be whole numbers or floats; whole numbers give whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from plugrl.runtime.planner.graph import pipe_time, stage_paths

Time = TypeVar("Time", int, float)


def pipeline_time(stage_times: Sequence[int], chunks: int, arcs: Sequence[tuple[int, int]] | None = None) -> int:
    """Return the time in which a pipeline processes ``chunks`` chunks, with unlimited buffers between its stages.

    It is the largest, over the paths of the stage graph, of the sum of the stage times and (chunks - 1) times their
    largest.

    Args:
        stage_times: the time of each stage for one chunk.
        chunks: how many chunks flow through, at least 1.
        arcs: pairs of positions of stages, the second consuming what the first produces; None makes a chain.

    Raises:
        ValueError: the arcs form a cycle, or there is no stage or no chunk.
    """
    count = len(stage_times)
    if count < 1 or chunks < 1:
        raise ValueError(f"a pipeline has at least one stage and one chunk, not {count} and {chunks}")
    chain = [(i, i + 1) for i in range(count - 1)]
    paths = stage_paths([1 << i for i in range(count)], chain if arcs is None else arcs)
    if paths is None:
        raise ValueError(f"the stages form a cycle: {arcs}")
    return pipe_time(paths, stage_times, chunks)


def bubble_ratio(
    stage_times: Sequence[int], chunks: int, devices: Sequence[int], arcs: Sequence[tuple[int, int]] | None = None
) -> float:
    """Return the share of device time that a pipeline leaves unused, between 0 and 1.

    Args:
        stage_times: the time of each stage for one chunk.
        chunks: how many chunks flow through.
        devices: the number of devices of each stage.
        arcs: as in :func:`pipeline_time`.
    """
    whole = pipeline_time(stage_times, chunks, arcs) * sum(devices)
    busy = chunks * sum(n * time for n, time in zip(devices, stage_times, strict=True))
    return 1 - busy / whole if whole else 0.0


def loop_time(env: Time, policy: Time, slices: int, rounds: int) -> Time:
    """Return the time of an environment and a policy that call each other, exact for first-come service.

    Args:
        env: time of one round of the environment over one slice.
        policy: the same of the policy.
        slices: into how many slices the environments are cut; they take turns in fixed order.
        rounds: how often each slice steps.
    """
    slower = max(env, policy)
    return (rounds - 1) * max(slices * slower, env + policy) + env + policy + (slices - 1) * slower
