"""How FSDP1 lays a model out: by its own key ``sharding_strategy``, or by ``parallelism``."""

from __future__ import annotations

from plugrl.engines.topology import Topology, resolve_topology
from plugrl.errors import ConfigError
from plugrl_engine_fsdp.config import FsdpConfig

_KEY = "fsdp_config.sharding_strategy"


def fsdp1_topology(config: FsdpConfig, world_size: int) -> Topology:
    """Copies and shards for so many ranks.

    Raises:
        ConfigError: a hybrid that does not both shard and replicate, or ``parallelism`` says something else.
    """
    strategy, size = config.sharding_strategy, config.hybrid_shard_size
    if size is not None and strategy != "hybrid_shard":
        raise ConfigError(f"fsdp_config.hybrid_shard_size: only hybrid_shard has it, not {strategy or 'the default'}")
    if config.parallelism is None:
        return _by_strategy(strategy or "full_shard", size, world_size)
    topology = resolve_topology(config.parallelism, world_size)
    if strategy is None or topology.dp_world_size == 1:
        return topology
    if strategy == "hybrid_shard" and size is None and topology.is_hybrid:
        return topology
    wanted = _by_strategy(strategy, size, world_size)
    if wanted != topology:
        raise ConfigError(f"{_KEY}: {strategy} makes {wanted}, and parallelism says {topology}; leave one of them out")
    return topology


def _by_strategy(strategy: str, size: int | None, world_size: int) -> Topology:
    if strategy == "no_shard":
        return Topology(dp_replicate=world_size, dp_shard=1)
    if strategy != "hybrid_shard":
        return Topology(dp_replicate=1, dp_shard=world_size)
    if size is None or size < 1:
        raise ConfigError(f"{_KEY}: hybrid_shard requires hybrid_shard_size, the ranks that share one copy, not {size}")
    if world_size % size:
        raise ConfigError(f"fsdp_config.hybrid_shard_size: must divide the number of ranks: {size} and {world_size}")
    if size in (1, world_size):
        other = "no_shard" if size == 1 else "full_shard"
        raise ConfigError(
            f"fsdp_config.hybrid_shard_size: hybrid_shard must both shard and replicate, which {size} of {world_size} "
            f"ranks do not; use {other}"
        )
    return Topology(dp_replicate=world_size // size, dp_shard=size)


def sharding_strategy(config: FsdpConfig, topology: Topology) -> str:
    """The strategy for a topology; one copy on each rank is no_shard, whatever it was called."""
    if topology.is_hybrid:
        return "hybrid_shard"
    if not topology.is_sharded:
        return "no_shard"
    return config.sharding_strategy or "full_shard"
