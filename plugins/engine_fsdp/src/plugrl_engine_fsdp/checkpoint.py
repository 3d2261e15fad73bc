"""Saving and loading in a form that no layout is tied to: full tensors in safetensors, keyed by published names.

``pretrained_model/`` is the policy family's own folder. ``training_state/`` holds ``optimizer_state.safetensors``
(``state/<name>/<slot>``), ``optimizer_param_groups.json``, ``scheduler_state.json``, ``rng_state.safetensors``
(``rank_<r>/<generator>``) and ``engine_state.json``. Gathers run on all ranks, rank 0 writes, all ranks read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from plugrl.errors import CheckpointError, PlugRLError
from plugrl_engine_fsdp.distributed import gather_objects, raise_together, rank, world_size
from plugrl_engine_fsdp.export import full_tensor, parameter_names, published_tensors, write_full
from plugrl_engine_fsdp.memory import move_optimizer_state
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
            training.mkdir(parents=True, exist_ok=True)
            if "model" in parts:
                engine.module.save_pretrained(folder / "pretrained_model", weights)
            if "optimizer" in parts and engine.optimizer is not None:
                save_file(moments, training / "optimizer_state.safetensors")
                _write_json(training / "optimizer_param_groups.json", _group_records(engine))
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
    save_file(tensors, training / "rng_state.safetensors")
    if engine.schedule is not None:
        _write_json(training / "scheduler_state.json", engine.schedule.state_dict())
    state = {
        "format_version": FORMAT_VERSION,
        "step": global_step,
        "dp_world_size": world_size(),
        "engine": type(engine).__name__,
        "skipped_steps": engine.skipped_steps,
    }
    _write_json(training / "engine_state.json", state)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# --------------------------------------------------------------------- loading
def load(engine: DataParallelEngine, local_path: str) -> None:
    """Restore the parts that ``checkpoint.load_contents`` names; one rank's failure is all ranks'. Collective."""
    parts = parts_of(engine.checkpoint_config, "load_contents")
    folder = Path(local_path)
    error: Exception | None = None
    try:
        engine.rest()
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
    records = _read_json(training / "optimizer_param_groups.json")
    names = parameter_names(engine.module)
    ours = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    _compare(str(training), [name for record in records for name in record["params"]], ours)
    path = _existing(training / "optimizer_state.safetensors")
    optimizer.state.clear()
    with safe_open(path, framework="pt", device="cpu") as handle:
        slots: dict[str, list[str]] = {}
        for key in handle.keys():  # noqa: SIM118 (no mapping)
            name, _, slot = key.removeprefix("state/").rpartition("/")
            slots.setdefault(name, []).append(slot)
        for group in optimizer.param_groups:
            on_device = bool(group.get("fused") or group.get("capturable"))
            for parameter in group["params"]:
                name = names[id(parameter)]
                # A parameter that never had a gradient has no state; it must not get any.
                for slot in slots.get(name, ()):
                    value = handle.get_tensor(f"state/{name}/{slot}")
                    optimizer.state[parameter][slot] = _as_state(value, parameter, engine.device, on_device)
    move_optimizer_state(optimizer, torch.device("cpu") if engine.is_optimizer_offload_enabled else engine.device)


def _as_state(
    value: torch.Tensor, parameter: torch.nn.Parameter, device: torch.device, on_device: bool
) -> torch.Tensor:
    if value.dim() == 0:
        return value.to(device) if on_device else value
    if value.shape != parameter.shape:
        raise CheckpointError(
            f"optimizer state of shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}"
        )
    moment = torch.empty_like(parameter.detach())
    write_full(moment, value)
    return moment


def _load_extra(engine: DataParallelEngine, training: Path) -> None:
    state = _read_json(training / "engine_state.json")
    if state.get("format_version", 0) > FORMAT_VERSION:
        raise CheckpointError(f"{training} was written by a newer engine: format {state['format_version']}")
    engine.skipped_steps = int(state.get("skipped_steps", 0))
    if engine.schedule is not None:
        engine.schedule.load_state_dict(_read_json(training / "scheduler_state.json"))
    stored = load_file(_existing(training / "rng_state.safetensors"))
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


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_existing(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is no valid JSON: {error}") from error
