"""The state of an engine between processes: the tensors of a checkpoint, as blocks, without files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from plugrl.checkpoints.safetensors_file import TensorSpec
from plugrl.checkpoints.source import compare
from plugrl.engines.state import RANDOM, Block, EngineState, Piece, StateParts, StateSpec, whole_pieces
from plugrl.errors import CheckpointError
from plugrl.platforms import get_platform
from plugrl.runtime.seeding import seed_rank
from plugrl_engine_fsdp.distributed import rank
from plugrl_engine_fsdp.random_state import random_state, restore_random_state
from plugrl_engine_megatron.boxes import Held
from plugrl_engine_megatron.holdings import STEP

if TYPE_CHECKING:
    from plugrl_engine_megatron.engine import MegatronEngine

# As the other engines name them.
_MODEL, _OPTIMIZER = "model/", "optimizer/"
_WHERE = "the state that was handed over"


def export_state(engine: MegatronEngine) -> EngineState:
    """Return this rank's share: what it alone has, and of what several have, its turn."""
    holdings = engine.holdings
    pieces = [_piece(_MODEL, held) for held in holdings.weights() if held.is_owner and held.block.count]
    if engine.optimizer is not None:
        pieces += [
            _piece(f"{_OPTIMIZER}{slot}/", held)
            for slot, held in holdings.states() if held.is_owner and held.block.count
        ]  # fmt: skip
        steps = ((name, value) for name, value, gives in holdings.steps() if gives)
        pieces += whole_pieces((f"{_OPTIMIZER}{STEP}/{name}", value) for name, value in steps)
    pieces += whole_pieces((f"{RANDOM}{rank()}/{name}", value) for name, value in random_state().items())
    return EngineState(
        pieces=pieces,
        values={
            "updates": engine.updates,
            "skipped_steps": engine.skipped_steps,
            "schedule": None if engine.schedule is None else engine.schedule.state_dict(),
            "scaler": None,
            "ema_updates": None,
        },
    )


def wanted_state(engine: MegatronEngine, specs: Mapping[str, StateSpec]) -> list[Block]:
    """Return the blocks of a state that this rank holds. Raises CheckpointError when it is of another model."""
    stored = {
        key.removeprefix(_MODEL): TensorSpec(spec.torch_dtype, spec.shape)
        for key, spec in specs.items() if key.startswith(_MODEL)
    }  # fmt: skip
    compare(_WHERE, stored, engine.module.tensor_shapes())
    holdings = engine.holdings
    found = [_block(_MODEL, held) for held in (*holdings.parameters(), *holdings.weights())]
    if engine.optimizer is not None and any(key.startswith(_OPTIMIZER) for key in specs):
        holdings.make_states()
        found += [_block(f"{_OPTIMIZER}{slot}/", held) for slot, held in holdings.states()]
        keys = {f"{_OPTIMIZER}{STEP}/{name}" for name, _, _ in holdings.steps()}
        lacking = sorted(({block.key for block in found} | keys) - specs.keys())
        if lacking:
            raise CheckpointError(f"{_WHERE} lacks {', '.join(lacking[:5])}.")
        found += [Block.of_whole(key, specs[key]) for key in sorted(keys)]
    prefix = f"{RANDOM}{rank()}/"
    found += [Block.of_whole(key, spec) for key, spec in specs.items() if key.startswith(prefix)]
    return list(dict.fromkeys(found))


def import_state(engine: MegatronEngine, parts: StateParts, values: Mapping[str, Any], seed: int) -> None:
    """Take over a state under this engine's own layout: each rank copies its blocks."""
    holdings = engine.holdings
    for held in (*holdings.parameters(), *holdings.weights()):
        held.write(parts.read(_block(_MODEL, held)))
    if engine.optimizer is not None and any(key.startswith(_OPTIMIZER) for key in parts.specs):
        for slot, held in holdings.states():
            held.write(parts.read(_block(f"{_OPTIMIZER}{slot}/", held)))
        names = {name: f"{_OPTIMIZER}{STEP}/{name}" for name, _, _ in holdings.steps()}
        holdings.set_step({name: parts.read(Block.of_whole(key, parts.specs[key])) for name, key in names.items()})
    engine.updates, engine.skipped_steps = values["updates"], values["skipped_steps"]
    if engine.schedule is not None:
        engine.schedule.load_state_dict(values["schedule"])
    own = dict(_random(parts))
    if own:
        restore_random_state(own)
    else:
        seed_rank(get_platform(), seed, rank(), engine.updates)


def _random(parts: StateParts) -> Iterator[tuple[str, Any]]:
    prefix = f"{RANDOM}{rank()}/"
    for key, spec in parts.specs.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), parts.read(Block.of_whole(key, spec))


def _block(prefix: str, held: Held) -> Block:
    return Block(prefix + held.block.key, held.block.offsets, held.block.sizes)


def _piece(prefix: str, held: Held) -> Piece:
    spec = StateSpec(str(held.memory.dtype).removeprefix("torch."), held.shape)
    return Piece(_block(prefix, held), spec, held.read())
