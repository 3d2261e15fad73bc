"""``training_step.json``: where a run stood, under which layout, and what a resumed run does otherwise."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.checkpoints.layout import OLD_STEP_FILE, STEP_FILE, TRAINING_STATE
from plugrl.checkpoints.tensors import read_json
from plugrl.errors import CheckpointError
from plugrl_engine_fsdp.checkpoint.contents import FORMAT_VERSION

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine

_log = logging.getLogger(__name__)

PROGRESS_KEYS = ("batch_size", "grad_accum_steps", "epoch", "offset", "samples_seen", "tracker_run_id", "seed")
"""What the runner alone knows; null where it does not say."""
_COMPARED = ("dp_world_size", "batch_size", "grad_accum_steps", "precision", "strategy")
_DEGREES = ("dp_replicate", "dp_shard", "ring_degree", "ulysses_degree")
_OLD_NAMES = {"num_processes": "dp_world_size"}


def step_record(engine: DataParallelEngine, step: int, progress: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content. Raises CheckpointError for a key of ``progress`` that the engine itself tells."""
    own = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "optimizer_updates": engine.updates,
        "skipped_steps": engine.skipped_steps,
        "engine": type(engine).__name__,
        **settings_of(engine),
    }
    clash = sorted(own.keys() & progress.keys())
    if clash:
        raise CheckpointError(f"training_step.json: {clash[0]} is the engine's to tell")
    return {**own, **dict.fromkeys(PROGRESS_KEYS), **progress}


def settings_of(engine: DataParallelEngine) -> dict[str, Any]:
    """How this run computes: what is compared when another one goes on from it."""
    topology = engine.topology
    return {
        "dp_world_size": topology.dp_world_size,
        "precision": str(engine.precision.compute).removeprefix("torch."),
        "strategy": engine.layout.name,
        "parallelism": {
            "dp_replicate": topology.dp_replicate,
            "dp_shard": topology.dp_shard,
            "ring_degree": 1,
            "ulysses_degree": 1,
        },
    }


def read_step_record(folder: Path) -> dict[str, Any]:
    """Read the record of a checkpoint, also of earlier versions; keys that are missing are null.

    Raises CheckpointError when there is none or when a newer version wrote it.
    """
    training = folder / TRAINING_STATE
    path = training / STEP_FILE
    if not path.is_file() and (training / OLD_STEP_FILE).is_file():
        path = training / OLD_STEP_FILE
    record = read_json(path)
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} holds no record.")
    for old, new in _OLD_NAMES.items():
        if new not in record and old in record:
            record[new] = record[old]
    version = int(record.get("format_version") or 1)
    if version > FORMAT_VERSION:
        raise CheckpointError(f"{path} was written by a newer version: format {version}, known is {FORMAT_VERSION}.")
    keys = (*_COMPARED, *PROGRESS_KEYS, "optimizer_updates", "parallelism")
    return {**dict.fromkeys(keys), **record}


def differences(stored: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """List each setting that both know and that differs, as ``name: stored -> ours``."""
    pairs = [(key, stored.get(key), ours.get(key)) for key in _COMPARED]
    theirs, here = stored.get("parallelism") or {}, ours.get("parallelism") or {}
    pairs += [(key, theirs.get(key), here.get(key)) for key in _DEGREES]
    return [f"{name}: {old} -> {new}" for name, old, new in pairs if None not in (old, new) and old != new]
