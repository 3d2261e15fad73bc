"""Tensors and plain values at rest: safetensors and JSON, so that nothing in a checkpoint is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from plugrl.checkpoints.manifest import FileRecord
from plugrl.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec
from plugrl.errors import CheckpointError

_STATE = "state/"


def save_tensors(
    path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> FileRecord:
    """Write named tensors of any device; tensors that share memory are written twice. Returns size and hash."""
    writer = SafetensorsWriter(Path(path), {name: TensorSpec.of(tensor) for name, tensor in tensors.items()}, metadata)
    try:
        for name in writer.names:
            writer.add(name, tensors[name])
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def load_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Read named tensors to the CPU. Raises CheckpointError naming the file when it is missing or damaged."""
    source = _existing(path)
    try:
        with safe_open(source, framework="pt", device="cpu") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{source} cannot be read: {error}.") from error


def load_metadata(path: str | Path) -> dict[str, str]:
    """Read the metadata of a file of tensors. Raises as :func:`load_tensors`."""
    source = _existing(path)
    try:
        with safe_open(source, framework="pt", device="cpu") as handle:
            return dict(handle.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{source} cannot be read: {error}.") from error


def flatten_optimizer_state(state: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Turn ``{parameter name: {slot: tensor or number}}`` into tensors named ``state/<parameter>/<slot>``."""
    return {
        f"{_STATE}{name}/{slot}": torch.as_tensor(value)
        for name, slots in state.items()
        for slot, value in slots.items()
    }


def unflatten_optimizer_state(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Undo :func:`flatten_optimizer_state`; numbers come back as tensors of no dimension."""
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, slot = key.removeprefix(_STATE).rpartition("/")
        if not key.startswith(_STATE) or not name:
            raise CheckpointError(f"{key!r} is no optimizer state: expected {_STATE}<parameter>/<slot>.")
        state.setdefault(name, {})[slot] = tensor
    return state


def write_json(path: str | Path, value: Any) -> None:
    """Write plain values as JSON, indented; numbers that are not finite are refused."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """Read JSON. Raises CheckpointError naming the file when it is missing or damaged."""
    source = _existing(path)
    try:
        return json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{source} is no valid JSON: {error}.") from error


def _existing(path: str | Path) -> Path:
    source = Path(path)
    if not source.is_file():
        raise CheckpointError(f"{source} is missing.")
    return source
