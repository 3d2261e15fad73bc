"""`rollout.options:` of the backend `vllm`. Light: pydantic only."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plugrl_rollout_openai.options import EngineOptions


class VLLMOptions(EngineOptions):
    """How the engine is built. What has no key here goes through `engine_args`."""

    tensor_parallel_size: int = Field(1, ge=1)
    """Devices over which the engine spreads: that many neighbouring ranks of the rollout."""

    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    """Share of a device's memory that the engine may take for weights and cache. Where training shares the device it
    must fit beside what training keeps there."""

    enforce_eager: bool = False
    """Run without recorded graphs: slower, but quicker to start and smaller."""

    max_model_len: int | None = Field(None, ge=1)
    """Longest prompt and response together; null is what the model allows."""

    max_lora_rank: int = Field(64, ge=1)
    """Largest rank of an adapter, for `native_lora`."""

    start_timeout_s: float = Field(900.0, gt=0)
    """Seconds until the engine must have started."""

    engine_args: dict[str, Any] = {}
    """Further arguments of vLLM's engine, by its own names."""
