"""Loading what any engine wrote: each rank reads the blocks that it holds; names and shapes come first."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.checkpoints.layout import PRETRAINED, RANDOM_FILE, SCHEDULER_FILE, TRAINING_STATE
from plugrl.checkpoints.reading import open_optimizer, open_weights
from plugrl.checkpoints.source import compare
from plugrl.checkpoints.tensors import load_tensors, read_json
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform
from plugrl.runtime.seeding import seed_rank
from plugrl_engine_fsdp.checkpoint.contents import FAULTS, parts_of
from plugrl_engine_fsdp.checkpoint.step_record import differences, read_step_record
from plugrl_engine_fsdp.distributed import raise_together, rank
from plugrl_engine_fsdp.random_state import restore_random_state
from plugrl_engine_megatron.holdings import STEP
from plugrl_engine_megatron.origin import fill
from plugrl_engine_megatron.saving import settings_of

if TYPE_CHECKING:
    from plugrl_engine_megatron.engine import MegatronEngine

_log = logging.getLogger(__name__)


def load(engine: MegatronEngine, folder: Path, progress: Mapping[str, Any] | None = None) -> None:
    """Restore the parts that ``checkpoint.load_contents`` names; one rank's failure is all ranks'. Collective."""
    error: Exception | None = None
    try:
        parts = parts_of(engine.checkpoint_config, "load_contents")
        training = folder / TRAINING_STATE
        if set(parts) - {"model"} and not training.is_dir():
            raise CheckpointError(
                f"{folder} holds no {TRAINING_STATE}/: it is no checkpoint to go on from. To start from its weights "
                f"give {folder / PRETRAINED} as model.path"
            )
        record = read_step_record(folder) if "extra" in parts else {}
        if "model" in parts:
            _load_weights(engine, folder / PRETRAINED)
        if "optimizer" in parts and engine.optimizer is not None:
            _load_optimizer(engine, training)
        changed = differences(record, {**settings_of(engine), **(progress or {})})
        if changed and rank() == 0:
            _log.warning("resume: this run differs from the checkpoint's: %s", "; ".join(changed))
        if "extra" in parts:
            _load_extra(engine, training, record, progress or {})
    except FAULTS as fault:
        error = fault
    raise_together(error, f"loading {folder}")


def _load_weights(engine: MegatronEngine, folder: Path) -> None:
    with open_weights(folder) as source:
        compare(source.where, source.specs, engine.module.tensor_shapes())
        fill(source, engine.holdings.parameters())
        fill(source, engine.holdings.weights())


def _load_optimizer(engine: MegatronEngine, training: Path) -> None:
    source, slots = open_optimizer(training)
    with source:
        if not slots:
            return
        shapes = engine.module.tensor_shapes()
        missing, unexpected = sorted(shapes.keys() - slots.keys()), sorted(slots.keys() - shapes.keys())
        if missing or unexpected:
            raise CheckpointError(
                f"{training} is of an optimizer of other parameters: {len(missing)} names missing "
                f"({', '.join(missing[:5])}), {len(unexpected)} unexpected ({', '.join(unexpected[:5])})"
            )
        engine.holdings.make_states()
        for slot, held in engine.holdings.states():
            key = slots[held.block.key][slot]
            if source.specs[key].shape != held.shape:
                raise CheckpointError(
                    f"the optimizer state of {held.block.key} has shape {source.specs[key].shape}, the parameter "
                    f"{held.shape}"
                )
            held.write(source.read(key, held.block.offsets, held.block.sizes))
        names = {name for name, _, _ in engine.holdings.steps()}
        engine.holdings.set_step({name: source.whole(slots[name][STEP]) for name in names})


def _load_extra(
    engine: MegatronEngine, training: Path, record: Mapping[str, Any], progress: Mapping[str, Any]
) -> None:
    engine.skipped_steps = int(record.get("skipped_steps") or 0)
    engine.updates = int(record.get("optimizer_updates") or 0)
    if engine.schedule is not None:
        engine.schedule.load_state_dict(read_json(training / SCHEDULER_FILE))
    stored = load_tensors(training / RANDOM_FILE)
    prefix = f"rank_{rank()}/"
    own = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
    if own:
        restore_random_state(own)
        return
    seed = next((int(each["seed"]) for each in (progress, record) if each.get("seed") is not None), 0)
    seed_rank(get_platform(), seed, rank(), int(record.get("step") or 0))
    _log.warning("resume: no random state for rank %d; seeded from (seed, rank, step)", rank())
