"""`parallelism:`: over how many processes a model is replicated and sharded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from plugrl.config.schema.base import Section


class ContextParallelConfig(Section):
    """Sequences cut over processes; reserved, degrees above 1 are refused."""

    ring_degree: int = Field(1, ge=1)
    """Processes that pass keys and values around a ring."""

    ulysses_degree: int = Field(1, ge=1)
    """Processes that exchange attention heads."""


class ParallelismConfig(Section):
    """Degrees of parallelism; their product is the number of processes. Untouched, every process holds a whole copy."""

    dp_replicate: int = Field(1, ge=1)
    """Copies of the model."""

    dp_shard: int = 1
    """Processes over which each copy is sharded; -1 takes all that are left."""

    context_parallel: ContextParallelConfig = ContextParallelConfig()
    """Sequences cut over processes."""

    cfg_parallel: Literal[1, 2] = 1
    """Processes for the two branches of classifier-free guidance; training needs 1."""

    @field_validator("dp_shard")
    @classmethod
    def _all_or_some(cls, value: int) -> int:
        if value != -1 and value < 1:
            raise ValueError(f"is at least 1, or -1 for all processes, not {value}")
        return value
