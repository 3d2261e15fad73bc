"""Opening the weights and the optimizer state of a checkpoint, in whichever form they lie there."""

from __future__ import annotations

from pathlib import Path

import torch

from plugrl.checkpoints.layout import (
    ADAPTER_FILE,
    MODEL_FILE,
    MODEL_SHARDS,
    OPTIMIZER_FILE,
    OPTIMIZER_SHARDS,
    holds_shards,
)
from plugrl.checkpoints.shards import ShardSource
from plugrl.checkpoints.source import SafetensorsSource, TensorSource
from plugrl.errors import CheckpointError

Slots = dict[str, dict[str, str]]
"""For each parameter, the name in the source of each slot of its state."""


def open_weights(folder: Path) -> TensorSource:
    """Open what a model folder holds: shards if there are any, else files. CheckpointError says what was looked for."""
    if holds_shards(folder / MODEL_SHARDS):
        return ShardSource(folder / MODEL_SHARDS, "model.")
    for pattern in (ADAPTER_FILE, MODEL_FILE, "model-*.safetensors"):
        files = sorted(folder.glob(pattern))
        if files:
            return SafetensorsSource(files)
    raise CheckpointError(
        f"{folder} holds no weights: neither {MODEL_FILE} nor {ADAPTER_FILE} nor {MODEL_SHARDS}/. Where the shards "
        f"still are, `plugrl checkpoint convert {folder}` makes one file of them"
    )


def open_optimizer(training: Path) -> tuple[TensorSource, Slots]:
    """Open the optimizer state of a folder ``training_state/``, with the names of what is in it."""
    if holds_shards(training / OPTIMIZER_SHARDS):
        source: TensorSource = ShardSource(training / OPTIMIZER_SHARDS, "optimizer.state.")
        keys = [(name.rpartition("."), name) for name in source.specs]
    elif (training / OPTIMIZER_FILE).is_file():
        source = SafetensorsSource([training / OPTIMIZER_FILE])
        keys = [(name.removeprefix("state/").rpartition("/"), name) for name in source.specs]
    else:
        raise CheckpointError(f"{training} holds no optimizer state: neither {OPTIMIZER_FILE} nor {OPTIMIZER_SHARDS}/")
    slots: Slots = {}
    for (name, _, slot), key in keys:
        slots.setdefault(name, {})[slot] = key
    return source, slots


def read_optimizer(training: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return ``{parameter: {slot: whole tensor}}`` of a folder ``training_state/``, all of it in memory."""
    source, slots = open_optimizer(training)
    with source:
        return {name: {slot: source.whole(key).clone() for slot, key in keys.items()} for name, keys in slots.items()}
