"""What an engine cannot do of what is asked for, said before a model is built or a worker started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plugrl.errors import ConfigError
from plugrl_engine_fsdp import checkpoint
from plugrl_engine_fsdp.config import FsdpConfig
from plugrl_engine_fsdp.config.mixed_precision import backend_problems

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine


def problems(
    engine: type[DataParallelEngine], config: FsdpConfig, checkpoint_config: Any, *, trainable: bool, world_size: int
) -> Iterator[str]:
    """Yield every problem, each as a line that begins with its key."""
    yield from (f"fsdp_config.{problem}" for problem in backend_problems(config, engine.strategy))
    if config.cpu_offload and (config.param_offload or config.optimizer_offload):
        yield (
            "fsdp_config.cpu_offload: keeps everything on the host at all times; leave out param_offload and "
            "optimizer_offload, which move it there between phases"
        )
    try:
        topology = engine.resolve_topology(config, world_size)
    except ConfigError as error:
        yield str(error)
        return
    if not topology.is_sharded:
        for key in ("cpu_offload", "ignored_modules"):
            if getattr(config, key):
                yield f"fsdp_config.{key}: only a sharded model has it, and {topology} shards nothing"
    if trainable:
        problem = checkpoint.format_problem(checkpoint_config, topology)
        if problem is not None:
            yield problem
