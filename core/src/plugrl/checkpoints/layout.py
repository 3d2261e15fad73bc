"""The names of files and folders in a checkpoint, and what of them holds the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

CheckpointFormat = Literal["safetensors", "dcp", "safetensors_dcp"]
"""Which files hold the model of a sharded run: one gathered file, each rank's shards, or both."""

PRETRAINED = "pretrained_model"
PRETRAINED_EMA = "pretrained_model_ema"
TRAINING_STATE = "training_state"
MODEL_FILE = "model.safetensors"
MODEL_SHARDS = "pytorch_model_fsdp_0"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
OPTIMIZER_FILE = "optimizer_state.safetensors"
OPTIMIZER_SHARDS = "optimizer_0"
OPTIMIZER_GROUPS = "optimizer_param_groups.json"
SCHEDULER_FILE = "scheduler_state.json"
SCALER_FILE = "scaler_state.json"
RANDOM_FILE = "rng_state.safetensors"
EMA_FILE = "ema_state.safetensors"
STEP_FILE = "training_step.json"
OLD_STEP_FILE = "engine_state.json"
"""What the first version called :data:`STEP_FILE`."""
SHARD_INDEX = ".metadata"
TIED = "tied."
"""Prefix in a weights file's metadata: ``tied.<other name>`` holds the name under which the tensor is stored."""


def holds_shards(folder: Path) -> bool:
    """Whether ``folder`` is a complete set of shards, as far as its index tells."""
    return (folder / SHARD_INDEX).is_file()


def writes_gathered(kind: CheckpointFormat, *, sharded: bool) -> bool:
    """Whether a run writes the gathered file: every unsharded run does."""
    return not sharded or kind != "dcp"


def writes_shards(kind: CheckpointFormat, *, sharded: bool) -> bool:
    """Whether a run writes each rank's shards of the model."""
    return sharded and kind != "safetensors"


def weights_file_name(folder: Path) -> str:
    """The name of the gathered weights in a model folder: the adapter's where the folder is an adapter's."""
    return ADAPTER_FILE if (folder / ADAPTER_CONFIG).is_file() else MODEL_FILE
