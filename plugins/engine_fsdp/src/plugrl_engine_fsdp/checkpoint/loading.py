"""Loading what any layout wrote: each rank reads its own part of what is on disk; names and shapes come first."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.checkpoints.layout import (
    EMA_FILE,
    OPTIMIZER_GROUPS,
    PRETRAINED,
    RANDOM_FILE,
    SCALER_FILE,
    SCHEDULER_FILE,
    TRAINING_STATE,
)
from plugrl.checkpoints.reading import open_optimizer, open_weights
from plugrl.checkpoints.source import SafetensorsSource, TensorSource, compare, read_into
from plugrl.checkpoints.tensors import load_tensors, read_json
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform
from plugrl.runtime.seeding import seed_rank
from plugrl_engine_fsdp.checkpoint.contents import EMA_UPDATES, FAULTS, group_records, parts_of, weights
from plugrl_engine_fsdp.checkpoint.step_record import differences, read_step_record, settings_of
from plugrl_engine_fsdp.distributed import raise_together, rank
from plugrl_engine_fsdp.memory import STEP_SLOT, move_optimizer_state
from plugrl_engine_fsdp.random_state import restore_random_state

if TYPE_CHECKING:
    from plugrl_engine_fsdp.ema import Ema
    from plugrl_engine_fsdp.engine import DataParallelEngine

_log = logging.getLogger(__name__)

_RATES = frozenset({"lr", "initial_lr"})
"""Keys of a group that the schedule sets."""


def load(engine: DataParallelEngine, folder: Path, progress: Mapping[str, Any] | None = None) -> None:
    """Restore the parts that ``checkpoint.load_contents`` names; one rank's failure is all ranks'. Collective.

    ``progress``: the runner's settings of this run; what differs from the checkpoint's is said in one warning.
    """
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
            load_weights(engine, folder / PRETRAINED)
        changed = differences(record, {**settings_of(engine), **(progress or {})})
        if "optimizer" in parts and engine.optimizer is not None:
            changed += _load_optimizer(engine, training)
        if changed and rank() == 0:
            _log.warning("resume: this run differs from the checkpoint's: %s", "; ".join(changed))
        if "extra" in parts:
            _load_extra(engine, training, record, progress or {})
    except FAULTS as fault:
        error = fault
    raise_together(error, f"loading {folder}")


def load_weights(engine: DataParallelEngine, folder: Path) -> None:
    """Read the weights of a model folder into the policy."""
    with open_weights(folder) as source:
        targets = weights(engine)
        compare(source.where, source.specs, {name: tensor.shape for name, tensor in targets.items()})
        for name, target in targets.items():
            read_into(source, name, target)
    engine.layout.loaded(engine.module, targets)


# --------------------------------------------------------------------- optimizer
def _load_optimizer(engine: DataParallelEngine, training: Path) -> list[str]:
    """Replace the optimizer's state; returns hyper-parameters that differ, in which this run's stay."""
    optimizer = engine.optimizer
    assert optimizer is not None
    ours = group_records(engine)
    names = [name for record in ours for name in record["params"]]
    changed: list[str] = []
    if (training / OPTIMIZER_GROUPS).is_file():
        stored = read_json(training / OPTIMIZER_GROUPS)
        _compare_names(training, [name for record in stored for name in record["params"]], names)
        changed = _changed_settings(stored, ours)
    source, slots = open_optimizer(training)
    with source:
        unknown = sorted(slots.keys() - set(names))
        if unknown:
            _compare_names(training, [*names, *unknown], names)
        state = {
            name: {slot: read_slot(engine, source, key, name, slot, parameter, group)
                   for slot, key in slots[name].items()}
            for name, parameter, group in parameters_in_order(engine)
            if name in slots
        }  # fmt: skip
    # A parameter that never had a gradient has no state; it must not get any.
    engine.layout.load_optimizer_state(engine.module, optimizer, state)
    move_optimizer_state(optimizer, state_device(engine))
    return changed


def state_device(engine: DataParallelEngine) -> torch.device:
    """Where between phases lies what updates alone need."""
    return torch.device("cpu") if engine.is_optimizer_offload_enabled else engine.device


def parameters_in_order(engine: DataParallelEngine) -> Iterable[tuple[str, torch.Tensor, Mapping[str, Any]]]:
    """Yield (name, a tensor laid out like it, its group) of every parameter that is trained."""
    assert engine.optimizer is not None
    for index, name, like in engine.layout.optimizer_parameters(engine.module, engine.optimizer):
        yield name, like, engine.optimizer.param_groups[index]


def read_slot(
    engine: DataParallelEngine,
    source: TensorSource,
    key: str,
    name: str,
    slot: str,
    parameter: torch.Tensor,
    group: Mapping[str, Any],
) -> torch.Tensor:
    """One tensor of the state, laid out like its parameter; counters lie where the kernel wants them."""
    spec = source.specs[key]
    if slot == STEP_SLOT or not spec.shape:
        on_device = group.get("fused") or group.get("capturable")
        return source.whole(key).clone().to(engine.device if on_device else "cpu")
    if spec.shape != tuple(parameter.shape):
        raise CheckpointError(
            f"the optimizer state of {name} has shape {spec.shape}, the parameter {tuple(parameter.shape)}"
        )
    plain = type(engine.optimizer) is torch.optim.AdamW  # keeps its moments in the type of the parameter
    moment = torch.empty_like(parameter.detach(), dtype=parameter.dtype if plain else spec.dtype)
    read_into(source, key, moment)
    return moment


def _compare_names(where: Path, stored: Iterable[str], expected: Iterable[str]) -> None:
    missing, unexpected = sorted(set(expected) - set(stored)), sorted(set(stored) - set(expected))
    if missing or unexpected:
        raise CheckpointError(
            f"{where} is of an optimizer of other parameters: {len(missing)} names missing ({', '.join(missing[:5])}), "
            f"{len(unexpected)} unexpected ({', '.join(unexpected[:5])})"
        )


def _changed_settings(stored: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[str]:
    """Hyper-parameters that differ, compared parameter by parameter: groups may have been split or merged."""
    theirs = {name: group for group in stored for name in group["params"]}
    changed: dict[str, None] = {}
    for group in ours:
        for name in group["params"]:
            for key, value in group.items():
                old = theirs[name].get(key, value)
                if key != "params" and key not in _RATES and _plain(old) != _plain(value):
                    changed[f"optim.{key}: {old} -> {value}"] = None
    return list(changed)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# --------------------------------------------------------------------- averaged weights
def _load_ema(engine: DataParallelEngine, ema: Ema, path: Path) -> None:
    if not path.is_file():
        if rank() == 0:
            _log.warning("resume: the checkpoint has no %s: the average of the weights starts anew", path.name)
        ema.restart(weights(engine))
        ema.to(state_device(engine))
        return
    with SafetensorsSource([path]) as source:
        stored = {name: spec for name, spec in source.specs.items() if name != EMA_UPDATES}
        compare(source.where, stored, {name: tensor.shape for name, tensor in ema.shadow.items()})
        for name, average in ema.shadow.items():
            read_into(source, name, average)
        ema.updates = int(source.whole(EMA_UPDATES))


# --------------------------------------------------------------------- schedule, loss scale, random state
def _load_extra(
    engine: DataParallelEngine, training: Path, record: Mapping[str, Any], progress: Mapping[str, Any]
) -> None:
    engine.skipped_steps = int(record.get("skipped_steps") or 0)
    engine.updates = int(record.get("optimizer_updates") or 0)
    if engine.schedule is not None:
        engine.schedule.load_state_dict(read_json(training / SCHEDULER_FILE))
    if engine.scaler is not None:
        if (training / SCALER_FILE).is_file():
            engine.scaler.load_state_dict(read_json(training / SCALER_FILE))
        elif rank() == 0:
            _log.warning("resume: the checkpoint holds no loss scale; it starts anew at %s", engine.scaler.scale)
    if engine.ema is not None:
        _load_ema(engine, engine.ema, training / EMA_FILE)
    stored = load_tensors(training / RANDOM_FILE)
    prefix = f"rank_{rank()}/"
    own = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
    if own:
        restore_random_state(own)
        return
    seed = next((int(each["seed"]) for each in (progress, record) if each.get("seed") is not None), 0)
    seed_rank(get_platform(), seed, rank(), int(record.get("step") or 0))
    _log.warning(
        "resume: no random state for rank %d, since %s ranks saved it; seeded from (seed, rank, step)",
        rank(), record.get("dp_world_size"),
    )  # fmt: skip
