"""The state of an engine between processes: the tensors of a checkpoint, under keys of their own, without files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from plugrl.checkpoints.safetensors_file import TensorSpec
from plugrl.checkpoints.source import TensorSource, compare, read_into, regions_of
from plugrl.engines.state import RANDOM, Block, EngineState, Piece, StateParts, StateSpec, whole_pieces
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform
from plugrl.runtime.seeding import seed_rank
from plugrl_engine_fsdp.checkpoint.contents import is_writer, weights
from plugrl_engine_fsdp.checkpoint.loading import parameters_in_order, read_slot, state_device
from plugrl_engine_fsdp.distributed import rank, world_size
from plugrl_engine_fsdp.memory import STEP_SLOT, move_optimizer_state
from plugrl_engine_fsdp.random_state import random_state, restore_random_state

if TYPE_CHECKING:
    from plugrl_engine_fsdp.engine import DataParallelEngine

_MODEL, _OPTIMIZER, _EMA = "model/", "optimizer/", "ema/"
_WHERE = "the state that was handed over"


class PartsSource(TensorSource):
    """The blocks whose keys begin with a prefix, without it."""

    def __init__(self, parts: StateParts, prefix: str) -> None:
        self.where = _WHERE
        self._parts = parts
        self._prefix = prefix
        self.specs = {
            key.removeprefix(prefix): TensorSpec(spec.torch_dtype, spec.shape)
            for key, spec in parts.specs.items()
            if key.startswith(prefix)
        }

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """As the contract says."""
        return self._parts.read(Block(self._prefix + name, tuple(offsets), tuple(sizes)))

    def close(self) -> None:
        """Do nothing."""


def export_state(engine: DataParallelEngine) -> EngineState:
    """Return this rank's share: of equal copies one rank gives each tensor, by turns. Collective for FSDP1 alone."""
    held = {f"{_MODEL}{name}": tensor for name, tensor in weights(engine).items()}
    if engine.optimizer is not None:
        state = engine.layout.optimizer_state(engine.module, engine.optimizer)
        held |= {f"{_OPTIMIZER}{slot}/{name}": t for name, slots in state.items() for slot, t in slots.items()}
    if engine.ema is not None:
        held |= {f"{_EMA}{name}": tensor for name, tensor in engine.ema.shadow.items()}
    pieces = [
        Piece(Block(key, offsets, sizes), StateSpec.of(tensor), memory)
        for index, (key, tensor) in enumerate(held.items())
        if is_writer(tensor, index, rank(), world_size())
        for (offsets, sizes), memory in regions_of(tensor)
    ]
    pieces += whole_pieces((f"{RANDOM}{rank()}/{name}", value) for name, value in random_state().items())
    return EngineState(
        pieces=pieces,
        values={
            "updates": engine.updates,
            "skipped_steps": engine.skipped_steps,
            "schedule": None if engine.schedule is None else engine.schedule.state_dict(),
            "scaler": None if engine.scaler is None else engine.scaler.state_dict(),
            "ema_updates": None if engine.ema is None else engine.ema.updates,
        },
    )


def wanted_state(engine: DataParallelEngine, specs: Mapping[str, StateSpec]) -> list[Block]:
    """Return the blocks of a state that this rank holds. Raises CheckpointError when it is of another model."""
    found = list(_regions(_MODEL, _checked(specs, _MODEL, weights(engine))))
    if engine.ema is not None:
        found += _regions(_EMA, _checked(specs, _EMA, engine.ema.shadow))
    if engine.optimizer is not None:
        likes = {name: like for name, like, _ in parameters_in_order(engine)}
        for key, slot, name in _slots(specs):
            if name not in likes:
                raise CheckpointError(f"{_WHERE} has optimizer state of {name}, which is not trained here.")
            shape = specs[key].shape
            if slot == STEP_SLOT or not shape:
                found.append(Block.of_whole(key, specs[key]))
                continue
            compare(_WHERE, {name: TensorSpec(specs[key].torch_dtype, shape)}, {name: likes[name].shape})
            found += _regions(f"{_OPTIMIZER}{slot}/", {name: likes[name]})
    prefix = f"{RANDOM}{rank()}/"
    found += [Block.of_whole(key, spec) for key, spec in specs.items() if key.startswith(prefix)]
    return found


def import_state(engine: DataParallelEngine, parts: StateParts, values: Mapping[str, Any], seed: int) -> None:
    """Take over a state under this engine's own layout: each rank copies its blocks. Collective for FSDP1 alone."""
    source, targets = PartsSource(parts, _MODEL), weights(engine)
    for name, target in targets.items():
        read_into(source, name, target)
    engine.layout.loaded(engine.module, targets)
    if engine.optimizer is not None:
        _import_optimizer(engine, parts)
    if engine.ema is not None:
        averages = PartsSource(parts, _EMA)
        for name, average in engine.ema.shadow.items():
            read_into(averages, name, average)
        engine.ema.updates = values["ema_updates"]
    engine.updates, engine.skipped_steps = values["updates"], values["skipped_steps"]
    if engine.schedule is not None:
        engine.schedule.load_state_dict(values["schedule"])
    if engine.scaler is not None:
        engine.scaler.load_state_dict(values["scaler"])
    own = PartsSource(parts, f"{RANDOM}{rank()}/")
    if own.specs:
        restore_random_state({name: own.whole(name) for name in own.specs})
    else:
        seed_rank(get_platform(), seed, rank(), engine.updates)


def _import_optimizer(engine: DataParallelEngine, parts: StateParts) -> None:
    optimizer = engine.optimizer
    assert optimizer is not None
    source = PartsSource(parts, _OPTIMIZER)
    slots: dict[str, list[str]] = {}
    for _, slot, name in _slots(parts.specs):
        slots.setdefault(name, []).append(slot)
    state = {
        name: {slot: read_slot(engine, source, f"{slot}/{name}", name, slot, like, group) for slot in slots[name]}
        for name, like, group in parameters_in_order(engine)
        if name in slots
    }
    engine.layout.load_optimizer_state(engine.module, optimizer, state)
    move_optimizer_state(optimizer, state_device(engine))


def _slots(specs: Mapping[str, StateSpec]) -> Iterator[tuple[str, str, str]]:
    """Yield key, slot and parameter of each tensor of an optimizer's state."""
    for key in specs:
        if key.startswith(_OPTIMIZER):
            slot, _, name = key.removeprefix(_OPTIMIZER).partition("/")
            yield key, slot, name


def _checked(
    specs: Mapping[str, StateSpec], prefix: str, targets: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Return the targets when the state has exactly these tensors. Raises CheckpointError otherwise."""
    stored = {
        key.removeprefix(prefix): TensorSpec(spec.torch_dtype, spec.shape)
        for key, spec in specs.items()
        if key.startswith(prefix)
    }
    compare(_WHERE, stored, {name: tensor.shape for name, tensor in targets.items()})
    return targets


def _regions(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[Block]:
    for name, tensor in tensors.items():
        for (offsets, sizes), _ in regions_of(tensor):
            yield Block(f"{prefix}{name}", offsets, sizes)

