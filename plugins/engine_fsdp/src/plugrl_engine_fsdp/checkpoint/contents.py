"""What belongs to a checkpoint of an engine: which parts, in which format, under which names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor

from plugrl.checkpoints.layout import CheckpointFormat
from plugrl.engines.topology import Topology
from plugrl.errors import CheckpointError, PlugRLError
from plugrl_engine_fsdp.names import held_tensors

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine

FORMAT_VERSION = 2
PARTS = ("model", "optimizer", "extra")
EMA_UPDATES = "updates"
"""Name, in the file of averages, of the number of updates that they are of."""
FORMATS = ("safetensors", "dcp", "safetensors_dcp")
FAULTS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError, PlugRLError)
"""What may go wrong on one rank and must then end the work of all."""


def setting(checkpoint_config: Any, key: str, default: Any) -> Any:
    """One key of the section ``checkpoint``, which may be a mapping, an object or None."""
    if isinstance(checkpoint_config, Mapping):
        found = checkpoint_config.get(key)
    else:
        found = getattr(checkpoint_config, key, None)
    return default if found is None else found


def parts_of(checkpoint_config: Any, key: str) -> tuple[str, ...]:
    """The parts that ``checkpoint.<key>`` names, all of them by default; CheckpointError for an unknown one."""
    parts = tuple(setting(checkpoint_config, key, PARTS))
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise CheckpointError(f"checkpoint.{key}: unknown part {unknown[0]!r}. Known: {', '.join(PARTS)}")
    return parts


def format_of(checkpoint_config: Any) -> CheckpointFormat:
    """``checkpoint.format``; CheckpointError for an unknown one."""
    found = setting(checkpoint_config, "format", "safetensors")
    if found not in FORMATS:
        raise CheckpointError(f"checkpoint.format: unknown format {found!r}. Known: {', '.join(FORMATS)}")
    return found


def format_problem(checkpoint_config: Any, topology: Topology) -> str | None:
    """Why the format cannot be written with this topology, as one line beginning with the key; None when it can."""
    chosen = format_of(checkpoint_config)
    if chosen == "safetensors" or topology.is_sharded:
        return None
    return (
        f"checkpoint_format: {chosen} writes the shards of a sharded run, and this one is not sharded: it resolves to "
        f"{topology}. Give parallelism.dp_shard more than 1, or leave checkpoint_format at safetensors"
    )


def weights(engine: DataParallelEngine) -> dict[str, torch.Tensor]:
    """What is saved of the policy, by published name, as it lies on this rank."""
    policy: Any = engine.module
    return {name: tensor for name, tensor in engine.layout.named_tensors(policy).items() if policy.is_saved(name)}


def tied_names(policy: Any) -> dict[str, str]:
    """For each further name of a tied tensor, the name under which it is stored."""
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in held_tensors(policy):
        by_tensor.setdefault(id(tensor), []).append(name)
    ties = {}
    for names in by_tensor.values():
        published = [(name, policy.published_name(name)) for name in names]
        stored = next((other for _, other in published if other is not None), None)
        if stored is not None and policy.is_saved(stored):
            ties.update({other or name: stored for name, other in published if other != stored})
    return ties


def group_records(engine: DataParallelEngine) -> list[dict[str, Any]]:
    """The optimizer's groups as plain values, their parameters by name."""
    assert engine.optimizer is not None
    names: dict[int, list[str]] = {}
    for index, name, _ in engine.layout.optimizer_parameters(engine.module, engine.optimizer):
        names.setdefault(index, []).append(name)
    records = []
    for index, group in enumerate(engine.optimizer.param_groups):
        record = {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        records.append({**record, "params": names.get(index, [])})
    return records


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def gather(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The whole of a tensor: collective for a sharded one, whose part may rest on the host; else itself, no copy."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    local = tensor.to_local()
    if local.device.type != device.type:
        tensor = DTensor.from_local(
            local.to(device),
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    return tensor.full_tensor()


def is_spread(tensor: torch.Tensor) -> bool:
    """Whether :func:`gather` makes a new tensor of it."""
    if not isinstance(tensor, DTensor):
        return False
    sizes = tensor.device_mesh.shape
    return any(size > 1 and not placement.is_replicate()
               for size, placement in zip(sizes, tensor.placements, strict=True))  # fmt: skip


def is_writer(tensor: torch.Tensor, index: int, rank: int, world_size: int) -> bool:
    """Whether this rank stores its block of the ``index``-th tensor: of equal blocks one is stored, by turns."""
    if not isinstance(tensor, DTensor):
        return index % world_size == rank
    mesh = tensor.device_mesh
    copy, copies = 0, 1
    for dim, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            copy = copy * mesh.size(dim) + mesh.get_local_rank(dim)
            copies *= mesh.size(dim)
    return copy == index % copies
