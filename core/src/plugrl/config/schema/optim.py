"""`optim:` and `checkpoint:`, which actor, critic and the supervised phase share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from plugrl.config.schema.base import Section

CheckpointContent = Literal["model", "optimizer", "extra"]
"""A part of a checkpoint: weights, optimizer state, or the rest (schedule, random states)."""


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(1e-6, ge=0)
    """Peak learning rate."""

    value_lr: float | None = Field(None, ge=0)
    """Peak learning rate of the parameters of a value head; null takes `lr`."""

    lr_multipliers: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Factors of the learning rate, by a part of the parameter's name; of several that fit the longest counts."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's two moments."""

    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""

    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay."""

    clip_grad: float = Field(1.0, ge=0)
    """Largest norm of the whole gradient; 0 leaves it as it is."""

    lr_warmup_steps: int = -1
    """Steps of linear warm-up from 0; -1 takes them from `lr_warmup_steps_ratio`."""

    lr_warmup_steps_ratio: float = Field(0.0, ge=0, le=1)
    """Warm-up as a share of all steps."""

    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """Schedule after the warm-up."""

    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Lowest learning rate of the cosine, as a share of the peak."""

    num_cycles: float = Field(0.5, ge=0)
    """Cosine periods between the warm-up and the last step."""

    total_training_steps: int = Field(-1, ge=-1)
    """Length of the schedule in steps of the trainer; -1 takes it from the run."""

    use_fp32_master_params: bool = False
    """Update in fp32 whatever the types of parameters and gradients are: low-precision parameters get an fp32 copy that
    keeps updates too small for them. For strategy fsdp with sharding_strategy no_shard."""

    fp32_master_any_layout: bool = False
    """Allow `use_fp32_master_params` under every strategy."""


class CheckpointConfig(Section):
    """What a component saves and loads, and how."""

    save_contents: tuple[CheckpointContent, ...] = ("model", "optimizer", "extra")
    """Parts that are written."""

    load_contents: tuple[CheckpointContent, ...] = ("model", "optimizer", "extra")
    """Parts that are read on resume; each must have been saved."""

    format: Literal["safetensors", "dcp", "safetensors_dcp"] = "safetensors"
    """Weights of a sharded run: `safetensors`, one gathered file that loads at once; `dcp`, each rank's shards, without
    a gather; `safetensors_dcp`, both. Unsharded runs write `safetensors`."""

    async_save: bool = False
    """Copy the state to host memory and write it while training goes on; costs that memory."""
