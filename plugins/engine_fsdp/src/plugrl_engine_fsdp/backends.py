"""The backends by which the engine is registered: they differ in the layout when the configuration leaves it open."""

from __future__ import annotations

from plugrl.engines.topology import Topology, resolve_topology
from plugrl.errors import ConfigError
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.engine import DataParallelEngine
from plugrl_engine_fsdp.layouts import Layout
from plugrl_engine_fsdp.layouts.fsdp1 import Fsdp1Layout
from plugrl_engine_fsdp.topology import fsdp1_topology


class Fsdp2Engine(DataParallelEngine):
    """Sharded over all ranks unless ``parallelism`` or ``fsdp_size`` say otherwise."""

    strategy = "fsdp2"

    @classmethod
    def resolve_topology(cls, config: FsdpConfig, world_size: int) -> Topology:
        """One copy over all ranks by default; ``fsdp_size`` ranks per copy make several."""
        if config.parallelism is not None:
            return resolve_topology(config.parallelism, world_size)
        size = world_size if config.fsdp_size == -1 else config.fsdp_size
        if size < 1 or world_size % size:
            raise ConfigError(
                f"fsdp_config.fsdp_size: {size} ranks per copy do not divide {world_size} ranks; "
                "give -1 to shard over all of them."
            )
        return Topology(dp_replicate=world_size // size, dp_shard=size)


class Fsdp1Engine(DataParallelEngine):
    """torch's FSDP1: sharded by ``sharding_strategy``, every unit with a precision of its own."""

    strategy = "fsdp"

    @classmethod
    def resolve_topology(cls, config: FsdpConfig, world_size: int) -> Topology:
        """By ``sharding_strategy`` and ``hybrid_shard_size``, or by ``parallelism``, which must not contradict it."""
        return fsdp1_topology(config, world_size)

    @classmethod
    def layout_class(cls, config: FsdpConfig, topology: Topology, trainable: bool) -> type[Layout]:
        """FSDP1, also for one rank: units have their precision there too."""
        return Fsdp1Layout


class DdpEngine(DataParallelEngine):
    """A whole copy on every rank."""

    strategy = "ddp"

    @classmethod
    def resolve_topology(cls, config: FsdpConfig, world_size: int) -> Topology:
        """Never sharded. Raises ConfigError when ``parallelism`` asks for it."""
        if config.parallelism is None:
            return Topology(dp_replicate=world_size, dp_shard=1)
        topology = resolve_topology(config.parallelism, world_size)
        if topology.is_sharded:
            raise ConfigError(
                f"parallelism.dp_shard: strategy ddp does not shard, and dp_shard is {topology.dp_shard}; "
                "give strategy fsdp2."
            )
        return topology
