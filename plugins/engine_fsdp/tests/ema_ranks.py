"""What a rank does in the tests of averaged weights."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import block_policy as bp
import torch
from parity import make_engine, share_of, weights_of
from safetensors.torch import load_file

from plugrl.engines.base import BatchOptions
from plugrl_engine_fsdp.distributed import gather_objects

EMA = {"enable": True, "decay": 0.5}


def exploding_loss(*given: Any) -> Any:
    """A loss whose gradient is not finite."""
    loss, metrics = bp.token_mean_loss(*given)
    return loss * float("inf"), metrics


def fingerprint(tensors: dict[str, torch.Tensor]) -> list[float]:
    """A few numbers of each tensor, by name."""
    picked = [tensors[name].double().flatten() for name in sorted(tensors)]
    return [float(value) for tensor in picked for value in (tensor.sum(), tensor.square().sum(), tensor[-1])]


def train(rank: int, world: int, strategy: str, config: dict[str, Any], folder: str) -> dict[str, Any]:
    """Train, validate, save, and go on in a fresh engine with and without the file of averages."""
    engine = make_engine(strategy, {"ema": EMA, **config})
    with engine.train_mode(zero_grad_on_exit=False):
        for step in range(4):
            options = BatchOptions(window=2, window_index=step % 2)
            engine.train_batch(share_of(rank, world, step), bp.token_mean_loss, options)
        engine.train_batch(share_of(rank, world, 9), exploding_loss, BatchOptions())
    before = weights_of(engine)
    with engine.evaluation_weights(), engine.eval_mode():
        engine.infer_batch(share_of(rank, world, 0))
        validated = weights_of(engine)
    after = weights_of(engine)
    engine.save_checkpoint(folder, global_step=4)
    gather_objects(None)
    average = load_file(Path(folder) / "pretrained_model_ema" / "model.safetensors")
    fresh = make_engine(strategy, {"ema": EMA, **config})
    fresh.load_checkpoint(folder)
    resumed = fingerprint({name: _whole(tensor) for name, tensor in fresh.ema.weights(_tensors(fresh)).items()})
    resumed_updates = fresh.ema.updates
    gather_objects(None)
    if rank == 0:
        (Path(folder) / "training_state" / "ema_state.safetensors").unlink()
    gather_objects(None)
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger("plugrl_engine_fsdp").addHandler(handler)
    fresh.load_checkpoint(folder)
    logging.getLogger("plugrl_engine_fsdp").removeHandler(handler)
    return {
        "updates": engine.ema.updates, "average": fingerprint(average), "resumed": resumed,
        "resumed_updates": resumed_updates, "validated_with": fingerprint(validated),
        "restored": all(torch.equal(before[name], after[name]) for name in before),
        "missing": fresh.ema.updates, "said": said.getvalue(),
    }  # fmt: skip


def _tensors(engine: Any) -> dict[str, torch.Tensor]:
    from plugrl_engine_fsdp.checkpoint import weights

    return weights(engine)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    full = getattr(tensor, "full_tensor", None)
    return (full() if callable(full) else tensor).detach()
