"""Saving and loading in a form that no layout is tied to: full tensors in safetensors, keyed by published names.

``pretrained_model/`` is the policy family's own folder. ``training_state/`` holds ``optimizer_state.safetensors``
(``state/<name>/<slot>``), ``optimizer_param_groups.json``, ``scheduler_state.json``, ``rng_state.safetensors``
(``rank_<r>/<generator>``) and ``engine_state.json``. Gathers run on all ranks, rank 0 writes, all ranks read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from plugrl.checkpoints.tensors import (
    load_tensors,
    read_json,
    save_tensors,
    write_json,
)
from plugrl.errors import CheckpointError, PlugRLError
from plugrl_engine_fsdp.distributed import gather_objects, raise_together, rank, world_size
from plugrl_engine_fsdp.export import full_tensor, write_full
from plugrl_engine_fsdp.memory import STEP_SLOT, move_optimizer_state
from plugrl_engine_fsdp.names import parameter_names, published_tensors
from plugrl_engine_fsdp.random_state import random_state, restore_random_state

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
PARTS = ("model", "optimizer", "extra")
_FAULTS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError, PlugRLError)


def parts_of(checkpoint_config: Any, key: str) -> tuple[str, ...]:
    """The parts that ``checkpoint.<key>`` names, all of them by default; CheckpointError for an unknown one."""
    named = checkpoint_config.get(key) if isinstance(checkpoint_config, dict) else getattr(checkpoint_config, key, None)
    parts = PARTS if named is None else tuple(named)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise CheckpointError(f"checkpoint.{key}: unknown part {unknown[0]!r}. Known: {', '.join(PARTS)}")
    return parts


# --------------------------------------------------------------------- saving
def save(engine: DataParallelEngine, local_path: str, global_step: int) -> None:
    """Write the folder; when one rank fails, all ranks raise CheckpointError. Collective."""
    parts = parts_of(engine.checkpoint_config, "save_contents")
    writer = rank() == 0
    weights = _on_host(engine.get_per_tensor_param()[0], writer) if "model" in parts else {}
    moments = _on_host(_optimizer_tensors(engine), writer) if "optimizer" in parts else {}
    random_states = gather_objects(random_state()) if "extra" in parts else []
    error: Exception | None = None
    if writer:
        try:
            folder = Path(local_path)
            training = folder / "training_state"
            if "model" in parts:
                engine.module.save_pretrained(folder / "pretrained_model", weights)
            if "optimizer" in parts and engine.optimizer is not None:
                save_tensors(training / "optimizer_state.safetensors", moments)
                write_json(training / "optimizer_param_groups.json", _group_records(engine))
            if "extra" in parts:
                _write_extra(engine, training, random_states, global_step)
        except _FAULTS as fault:
            error = fault
    raise_together(error, f"saving {local_path}")


def _on_host(tensors: Iterable[tuple[str, torch.Tensor]], keep: bool) -> dict[str, torch.Tensor]:
    """Consume a collective stream to its end; only a rank that keeps it pays for the memory."""
    kept: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if keep:
            kept[name] = tensor.cpu().contiguous()
    return kept


def _optimizer_tensors(engine: DataParallelEngine) -> Iterable[tuple[str, torch.Tensor]]:
    if engine.optimizer is None:
        return
    names = parameter_names(engine.module)
    on_host = engine.is_optimizer_offload_enabled
    if on_host:
        move_optimizer_state(engine.optimizer, engine.device)
    for group in engine.optimizer.param_groups:
        for parameter in group["params"]:
            for slot, value in engine.optimizer.state.get(parameter, {}).items():
                yield f"state/{names[id(parameter)]}/{slot}", full_tensor(torch.as_tensor(value))
    if on_host:
        move_optimizer_state(engine.optimizer, torch.device("cpu"))


def _group_records(engine: DataParallelEngine) -> list[dict[str, Any]]:
    assert engine.optimizer is not None
    names = parameter_names(engine.module)
    records = []
    for group in engine.optimizer.param_groups:
        record = {key: value for key, value in group.items() if key != "params"}
        records.append({**record, "params": [names[id(parameter)] for parameter in group["params"]]})
    return records


def _write_extra(
    engine: DataParallelEngine, training: Path, random_states: list[dict[str, torch.Tensor]], global_step: int
) -> None:
    tensors = {f"rank_{index}/{key}": value for index, one in enumerate(random_states) for key, value in one.items()}
    save_tensors(training / "rng_state.safetensors", tensors)
    if engine.schedule is not None:
        write_json(training / "scheduler_state.json", engine.schedule.state_dict())
    state = {
        "format_version": FORMAT_VERSION,
        "step": global_step,
        "dp_world_size": world_size(),
        "engine": type(engine).__name__,
        "skipped_steps": engine.skipped_steps,
    }
    write_json(training / "engine_state.json", state)


# --------------------------------------------------------------------- loading
def load(engine: DataParallelEngine, local_path: str) -> None:
    """Restore the parts that ``checkpoint.load_contents`` names; one rank's failure is all ranks'. Collective."""
    parts = parts_of(engine.checkpoint_config, "load_contents")
    folder = Path(local_path)
    error: Exception | None = None
    try:
        engine.layout.rest()
        if "model" in parts:
            _load_weights(engine, folder / "pretrained_model")
        if "optimizer" in parts and engine.optimizer is not None:
            _load_optimizer(engine, folder / "training_state")
        if "extra" in parts:
            _load_extra(engine, folder / "training_state")
    except _FAULTS as fault:
        error = fault
    raise_together(error, f"loading {local_path}")


def _load_weights(engine: DataParallelEngine, folder: Path) -> None:
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no model.safetensors")
    targets = dict(published_tensors(engine.module))
    with ExitStack() as stack:
        handles = [stack.enter_context(safe_open(file, framework="pt", device="cpu")) for file in files]
        holder = {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118 (no mapping)
        _compare(str(folder), holder, targets)
        for name, handle in holder.items():
            stored, shape = handle.get_slice(name).get_shape(), list(targets[name].shape)
            if stored != shape:
                raise CheckpointError(f"{folder}: {name} has shape {stored}, the model expects {shape}")
        for name, target in targets.items():
            write_full(target, holder[name].get_tensor(name))


def _compare(where: str, stored: Iterable[str], expected: Iterable[str]) -> None:
    missing, unexpected = sorted(set(expected) - set(stored)), sorted(set(stored) - set(expected))
    if missing or unexpected:
        raise CheckpointError(
            f"{where} does not fit the model: {len(missing)} names missing ({', '.join(missing[:3])}), "
            f"{len(unexpected)} unexpected ({', '.join(unexpected[:3])})"
        )


def _load_optimizer(engine: DataParallelEngine, training: Path) -> None:
    optimizer = engine.optimizer
    assert optimizer is not None
    records = read_json(training / "optimizer_param_groups.json")
    names = parameter_names(engine.module)
    ours = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    _compare(str(training), [name for record in records for name in record["params"]], ours)
    optimizer.state.clear()
    # One tensor at a time: the whole state may be larger than what is free beside this rank's part of it.
    with safe_open(_existing(training / "optimizer_state.safetensors"), framework="pt", device="cpu") as handle:
        slots: dict[str, list[str]] = {}
        for key in handle.keys():  # noqa: SIM118 (no mapping)
            name, _, slot = key.removeprefix("state/").rpartition("/")
            slots.setdefault(name, []).append(slot)
        for group in optimizer.param_groups:
            counter_device = engine.device if group.get("fused") or group.get("capturable") else torch.device("cpu")
            for parameter in group["params"]:
                name = names[id(parameter)]
                # A parameter that never had a gradient has no state; it must not get any.
                for slot in slots.get(name, ()):
                    value = handle.get_tensor(f"state/{name}/{slot}")
                    optimizer.state[parameter][slot] = (
                        value.to(counter_device) if slot == STEP_SLOT else _as_moment(name, value, parameter)
                    )
    move_optimizer_state(optimizer, torch.device("cpu") if engine.is_optimizer_offload_enabled else engine.device)


def _as_moment(name: str, value: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """Lay ``value`` out like ``parameter``."""
    if value.shape != parameter.shape:
        raise CheckpointError(
            f"the optimizer state of {name} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}"
        )
    moment = torch.empty_like(parameter.detach())
    write_full(moment, value)
    return moment


def _load_extra(engine: DataParallelEngine, training: Path) -> None:
    state = read_json(training / "engine_state.json")
    if state.get("format_version", 0) > FORMAT_VERSION:
        raise CheckpointError(f"{training} was written by a newer engine: format {state['format_version']}")
    engine.skipped_steps = int(state.get("skipped_steps", 0))
    if engine.schedule is not None:
        engine.schedule.load_state_dict(read_json(training / "scheduler_state.json"))
    stored = load_tensors(training / "rng_state.safetensors")
    prefix = f"rank_{rank()}/"
    own = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
    if own:
        restore_random_state(own)
    else:
        _log.warning("resume: no random state for rank %d; it was saved with %s ranks", rank(), state["dp_world_size"])


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    return path
