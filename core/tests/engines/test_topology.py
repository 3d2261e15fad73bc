"""Degrees are filled in, multiplied and compared with the number of processes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from plugrl.config.schema import ParallelismConfig
from plugrl.engines.topology import Topology, effective_batch_line, resolve_topology
from plugrl.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (8, 1)),
        ({"dp_shard": -1}, (1, 8)),
        ({"dp_replicate": 2, "dp_shard": -1}, (2, 4)),
        ({"dp_replicate": 2, "dp_shard": 4}, (2, 4)),
        ({"dp_replicate": 8}, (8, 1)),
        ({"dp_replicate": 8, "dp_shard": -1}, (8, 1)),
    ],
)
def test_eight_processes(given: dict[str, int], expected: tuple[int, int]) -> None:
    topology = resolve_topology(ParallelismConfig(**given), 8)
    assert (topology.dp_replicate, topology.dp_shard) == expected and topology.dp_world_size == 8
    assert topology.is_sharded == (expected[1] > 1) and topology.is_hybrid == (expected == (2, 4))
    again = ParallelismConfig(dp_replicate=topology.dp_replicate, dp_shard=topology.dp_shard)
    assert resolve_topology(again, 8) == topology


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"dp_replicate": 2, "dp_shard": 2}, ["dp_replicate=2 x dp_shard=2 x ring_degree=1", "= 4", "8 processes"]),
        ({"dp_replicate": 3, "dp_shard": -1}, ["8 processes", "dp_replicate=3"]),
        ({"dp_replicate": 4}, ["= 4", "8 processes", "give dp_shard=-1"]),
        ({"context_parallel": {"ring_degree": 2}}, ["parallelism.context_parallel.ring_degree: 2 is not implemented"]),
        ({"context_parallel": {"ulysses_degree": 2}}, ["ulysses_degree: 2"]),
        ({"cfg_parallel": 2}, ["cfg_parallel: 2"]),
    ],
)
def test_degrees_that_do_not_fit_are_named(given: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_topology(ParallelismConfig(**given), 8)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"dp_replicate": 0},
        {"dp_shard": 0},
        {"dp_shard": -2},
        {"cfg_parallel": 3},
        {"context_parallel": {"ring_degree": 0}},
    ],
)
def test_degrees_out_of_range_are_refused_when_read(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ParallelismConfig(**given)


def test_the_banner_says_what_one_update_takes() -> None:
    line = effective_batch_line(3, Topology(dp_replicate=2, dp_shard=2), 2)
    assert line == (
        "effective batch size: 3 per worker x 4 workers x 2 accumulation = 24 (dp_replicate=2, dp_shard=2)"
    )
