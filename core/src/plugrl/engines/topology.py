"""How many copies of a model there are and over how many processes each is sharded."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plugrl.config.schema.parallelism import ParallelismConfig
from plugrl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Resolved degrees: ``dp_replicate`` copies, each sharded over ``dp_shard`` ranks; their product is the world.

    Ranks are laid out with the copies outermost: rank = copy * dp_shard + shard.
    """

    dp_replicate: int
    dp_shard: int

    @property
    def dp_world_size(self) -> int:
        """Ranks that see different data."""
        return self.dp_replicate * self.dp_shard

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds less than a whole copy."""
        return self.dp_shard > 1

    @property
    def is_hybrid(self) -> bool:
        """Whether there are several copies, each of them sharded."""
        return self.is_sharded and self.dp_replicate > 1

    def __str__(self) -> str:
        return f"dp_replicate={self.dp_replicate}, dp_shard={self.dp_shard}"


def resolve_topology(parallelism: ParallelismConfig, world_size: int) -> Topology:
    """Fill in what ``parallelism`` leaves open for so many processes.

    ``dp_shard`` -1 takes the processes that ``dp_replicate`` leaves; with every degree at 1 there are ``world_size``
    copies.

    Raises:
        ConfigError: degrees that training cannot do, or whose product is not the number of processes.
    """
    context = parallelism.context_parallel
    for name, degree in (
        ("context_parallel.ring_degree", context.ring_degree),
        ("context_parallel.ulysses_degree", context.ulysses_degree),
        ("cfg_parallel", parallelism.cfg_parallel),
    ):
        if degree > 1:
            raise ConfigError(f"parallelism.{name}: {degree} is not implemented for training; leave it at 1.")
    replicate, shard = parallelism.dp_replicate, parallelism.dp_shard
    if shard == -1:
        if world_size % replicate:
            raise ConfigError(
                f"parallelism.dp_shard: -1 cannot be filled in: {world_size} processes are not divisible by "
                f"dp_replicate={replicate} x context_parallel=1."
            )
        shard = world_size // replicate
    elif replicate == shard == 1:
        replicate = world_size
    if math.prod((replicate, shard)) != world_size:
        raise ConfigError(
            f"parallelism: dp_replicate={replicate} x dp_shard={shard} x ring_degree=1 x ulysses_degree=1 = "
            f"{replicate * shard}, but there are {world_size} processes (WORLD_SIZE)."
            + (f" For {replicate} sharded copies give dp_shard=-1." if shard == 1 and replicate > 1 else "")
        )
    return Topology(dp_replicate=replicate, dp_shard=shard)


def effective_batch_line(batch_size: int, topology: Topology, accumulation: int) -> str:
    """Return the line of a start banner that says how many samples one optimizer update takes."""
    product = batch_size * topology.dp_world_size * accumulation
    return (
        f"effective batch size: {batch_size} per worker x {topology.dp_world_size} workers x {accumulation} "
        f"accumulation = {product} ({topology})"
    )
