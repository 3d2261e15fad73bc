"""What a rank does in the checkpoint tests: train, save, load what another layout saved, go on."""

from __future__ import annotations

import logging
from typing import Any

import block_policy as bp
import parity
import torch
import torch.distributed as dist

from plugrl.checkpoints import CheckpointStore
from plugrl.checkpoints.shards import ShardWriter
from plugrl.engines.registry import EngineRegistry
from plugrl.errors import CheckpointError, ConfigError
from plugrl.models import register_model
from plugrl_engine_fsdp.checkpoint.contents import gather

BEFORE, AFTER = 2, 2
"""Steps before and after the checkpoint."""


def make_engine(
    backend: str, config: dict[str, Any], checkpoint: dict[str, Any] | None = None, optim: Any = None, **model: Any
) -> Any:
    """An initialised engine around the small policy."""
    register_model("engine_test_blocks", bp.build)
    engine_class = EngineRegistry.get_engine_cls("language_model", backend)
    named = {"model_type": "engine_test_blocks", **model}
    engine = engine_class(named, {"dtype": "fp32", **config}, optim or parity.OPTIM, checkpoint)
    engine.initialize()
    return engine


def train(engine: Any, rank: int, world: int, first: int, last: int) -> list[float]:
    """Steps ``first`` to ``last`` on the data that belong to them; the losses of the whole batches."""
    losses = []
    for step in range(first, last):
        with engine.train_mode():
            result = engine.train_batch(parity.share_of(rank, world, step), bp.token_mean_loss)
        losses.append(parity.mean_over_ranks(result.loss))
    return losses


def state_of(engine: Any) -> dict[str, torch.Tensor]:
    """Weights and optimizer state, whole, each under its name. Collective."""
    found = {f"weight/{name}": tensor for name, tensor in parity.weights_of(engine).items()}
    state = engine.layout.optimizer_state(engine.module, engine.optimizer)
    for name, slots in state.items():
        found.update({f"{slot}/{name}": gather(value, engine.device).clone() for slot, value in slots.items()})
    return found


def save(engine: Any, folder: str, step: int, rank: int, **progress: Any) -> None:
    """Save through a store, as a run does: rank 0 has it."""
    if rank == 0:
        store = CheckpointStore(folder)
        context = store.write(step)
        path: list[Any] = [str(context.__enter__())]
    else:
        path = [None]
    if dist.is_initialized():
        dist.broadcast_object_list(path)
    engine.save_checkpoint(path[0], step, progress=progress)
    if rank == 0:
        context.__exit__(None, None, None)
        store.finish()
    engine.finish_saving()
    if dist.is_initialized():
        dist.barrier()


def write(
    rank: int, world: int, backend: str, config: dict[str, Any], checkpoint: dict[str, Any], folder: str, **model: Any
) -> dict[str, Any]:
    """Train, save into ``folder/000002``, train on; what was saved and where training came to."""
    engine = make_engine(backend, config, checkpoint, **model)
    train(engine, rank, world, 0, BEFORE)
    save(engine, folder, BEFORE, rank, batch_size=parity.GLOBAL_ROWS // world, grad_accum_steps=1)
    saved = state_of(engine)
    losses = train(engine, rank, world, BEFORE, BEFORE + AFTER)
    result = {"saved": saved, "losses": losses, "end": state_of(engine)}
    return result if rank == 0 else {}


class Warnings(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def read(
    rank: int, world: int, backend: str, config: dict[str, Any], folders: list[str], accumulation: int = 1, **model: Any
) -> list[dict[str, Any]]:
    """Load each folder into a fresh engine and train on; what was loaded, where it came to, and the warnings."""
    results = []
    for folder in folders:
        engine = make_engine(backend, config, seed=5, **model)
        handler = Warnings()
        logging.getLogger("plugrl_engine_fsdp").addHandler(handler)
        progress = {"batch_size": parity.GLOBAL_ROWS // world, "grad_accum_steps": accumulation}
        engine.load_checkpoint(folder, progress=progress)
        logging.getLogger("plugrl_engine_fsdp").removeHandler(handler)
        loaded = state_of(engine)
        losses = train(engine, rank, world, BEFORE, BEFORE + AFTER)
        result = {"loaded": loaded, "losses": losses, "end": state_of(engine), "lr": engine.schedule.lr}
        results.append({**(result if rank == 0 else {}), "warnings": handler.texts, "updates": engine.updates})
    return results


def half_precision(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Save an fp16 run under FSDP2 in both forms, and load it again: what was saved, and the loss scale."""
    config = {"dtype": "fp16", "grad_scaler": {"init_scale": 512.0, "growth_interval": 2}}
    engine = make_engine("fsdp2", config, {"format": "safetensors_dcp"})
    train(engine, rank, world, 0, 3)
    save(engine, folder, 3, rank)
    other = make_engine("fsdp2", config)
    other.load_checkpoint(f"{folder}/000003")
    return {"saved": state_of(engine), "loaded": state_of(other), "scale": other.scaler.state_dict()}


def refused(rank: int, world: int, backend: str, config: dict[str, Any], folder: str, **model: Any) -> str:
    """The text with which loading ``folder`` fails; the engine is as it was."""
    engine = make_engine(backend, config, **model)
    before = state_of(engine)
    try:
        engine.load_checkpoint(folder)
    except CheckpointError as error:
        after = state_of(engine)
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
        return str(error)
    return ""


def refused_at_start(rank: int, world: int, backend: str, config: dict[str, Any], checkpoint: dict[str, Any]) -> str:
    """The text with which initialisation fails."""
    try:
        make_engine(backend, config, checkpoint)
    except ConfigError as error:
        return str(error)
    return ""


def failing_save(rank: int, world: int, folder: str, bad_rank: int) -> list[str]:
    """Save twice; the first time one rank cannot write its shards. The errors of this rank."""
    engine = make_engine("fsdp2", {}, {"format": "dcp"})
    train(engine, rank, world, 0, 1)
    original, texts = ShardWriter.add, []
    for step in (1, 2):
        if step == 1 and rank == bad_rank:
            ShardWriter.add = _no_space  # type: ignore[method-assign]
        try:
            engine.save_checkpoint(f"{folder}/{step}", step)
        except CheckpointError as error:
            texts.append(str(error))
        finally:
            ShardWriter.add = original  # type: ignore[method-assign]
    return texts


def _no_space(*_: Any) -> None:
    raise OSError(28, "No space left on device")
