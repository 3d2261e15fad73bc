"""`rollout.options:` of the backend `sglang`. Light: pydantic only."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plugrl.config.schema.base import Names
from plugrl_rollout_openai.options import EngineOptions


class SGLangOptions(EngineOptions):
    """How the engine is built. What has no key here goes through `engine_args`."""

    tensor_parallel_size: int = Field(1, ge=1)
    """Devices over which the engine spreads: that many neighbouring ranks of the rollout."""

    mem_fraction_static: float = Field(0.85, gt=0, le=1)
    """Share of a device's memory for weights and cache. Where training shares the device it must fit beside what
    training keeps there."""

    context_length: int | None = Field(None, ge=1)
    """Longest prompt and response together; null is what the model allows."""

    deterministic: bool = False
    """Draw each sample from its seed, whatever the batch; slower. Without it SGLang does not look at seeds."""

    max_lora_rank: int = Field(64, ge=1)
    """Largest rank of an adapter, for `native_lora`."""

    lora_target_modules: Names = ("all",)
    """Layers that may have an adapter, for `native_lora`."""

    start_timeout_s: float = Field(900.0, gt=0)
    """Seconds until the engine must have started."""

    engine_args: dict[str, Any] = {}
    """Further arguments of SGLang's engine, by its own names."""
