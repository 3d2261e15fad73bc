"""What a rank does in the parity tests: train some steps of a small policy under a backend and a configuration."""

from __future__ import annotations

import logging
from typing import Any

import block_policy as bp
import torch
from layout_worker import mean_over_ranks

from plugrl.engines.base import BatchOptions
from plugrl.engines.registry import EngineRegistry
from plugrl.models import register_model

GLOBAL_ROWS = 16
# A large eps, since AdamW would blow up the rounding errors of gradients that are zero by symmetry (key biases).
OPTIM = {"lr": 1e-2, "clip_grad": 0.5, "lr_scheduler_type": "cosine", "lr_warmup_steps": 2, "total_training_steps": 40,
         "eps": 1e-3}  # fmt: skip


def make_engine(backend: str, config: dict[str, Any] | None = None, optim: Any = OPTIM, **model: Any) -> Any:
    """An initialised engine around the small policy."""
    register_model("engine_test_blocks", bp.build)
    engine_class = EngineRegistry.get_engine_cls("language_model", backend)
    engine = engine_class({"model_type": "engine_test_blocks", **model}, config or {}, optim, None)
    engine.initialize()
    return engine


def share_of(rank: int, world: int, seed: int) -> dict[str, torch.Tensor]:
    """This rank's rows of a global batch that depends on the seed alone."""
    rows = GLOBAL_ROWS // world
    return bp.slice_rows(bp.make_rows(GLOBAL_ROWS, seed=seed), rank * rows, (rank + 1) * rows)


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    """Whole weights by published name. Collective."""
    return {name: tensor.clone() for name, tensor in engine.get_per_tensor_param()[0]}


def train(
    rank: int,
    world: int,
    backend: str,
    config: dict[str, Any],
    *,
    steps: int,
    window: int = 1,
    micro: int | None = None,
) -> dict[str, Any]:
    """Train ``steps`` loop steps; losses and norms are of the whole batch, weights are rank 0's view of them."""
    engine = make_engine(backend, config)
    losses, norms, rates = [], [], []
    for step in range(steps):
        options = BatchOptions(micro_batch_size=micro, window=window, window_index=step % window)
        with engine.train_mode(zero_grad_on_exit=options.closes_window):
            result = engine.train_batch(share_of(rank, world, step), bp.token_mean_loss, options)
        losses.append(mean_over_ranks(result.loss))
        norms += [float(result.metrics["grad_norm"])] if options.closes_window else []
        rates.append(float(result.metrics["lr"]))
    return {
        "losses": losses, "norms": norms, "rates": rates, "updates": engine.updates, "topology": str(engine.topology),
        "layout": engine.layout.name, "weights": weights_of(engine),
    }  # fmt: skip


def overflow(rank: int, world: int, backend: str, config: dict[str, Any], bad_rank: int) -> dict[str, Any]:
    """fp16: a good step, a step whose loss overflows on one rank alone, and a good one again."""
    scaler = {"init_scale": 1024.0, "growth_interval": 2}
    engine = make_engine(backend, {**config, "dtype": "fp16", "grad_scaler": scaler}, {"lr": 1e-2})
    seen: dict[str, Any] = {"scales": [], "skipped": [], "moved": [], "dtypes": set()}
    for step in range(4):
        before = weights_of(engine)
        data = share_of(rank, world, step)
        if step == 1 and rank == bad_rank:
            data["advantages"] = data["advantages"] * 1e38
        with engine.train_mode():
            result = engine.train_batch(data, bp.token_mean_loss)
        after = weights_of(engine)
        seen["scales"].append(engine.scaler.scale)
        seen["skipped"].append(int(float(result.metrics["skipped_steps"])))
        seen["moved"].append(any(not torch.equal(before[name], after[name]) for name in after))
    seen["dtypes"] = sorted({str(tensor.dtype) for tensor in weights_of(engine).values()})
    seen["state"] = engine.scaler.state_dict()
    seen["finite"] = all(bool(torch.isfinite(tensor).all()) for tensor in weights_of(engine).values())
    return seen


def refused(rank: int, world: int, backend: str, config: dict[str, Any]) -> str:
    """The text of the ConfigError that initialisation ends with; empty when there is none."""
    from plugrl.errors import ConfigError

    try:
        make_engine(backend, config)
    except ConfigError as error:
        return str(error)
    return ""


def idle_unit_warnings(rank: int, world: int, backend: str) -> list[str]:
    """What is logged in two steps of a policy with one block that is never called."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("plugrl_engine_fsdp").addHandler(handler)
    try:
        engine = make_engine(backend, spare=True)
        for step in range(2):
            with engine.train_mode():
                engine.train_batch(share_of(rank, world, step), bp.token_mean_loss)
    finally:
        logging.getLogger("plugrl_engine_fsdp").removeHandler(handler)
    return [message for message in messages if "never ran" in message]


def validation_in_a_window(rank: int, world: int, backend: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """A window of two batches without validation in between, with one, and with one that fails inside a unit."""
    found = []
    for kind in ("none", "sound", "failing"):
        engine = make_engine(backend, config)
        for index in range(2):
            options = BatchOptions(window=2, window_index=index)
            with engine.train_mode(zero_grad_on_exit=options.closes_window):
                result = engine.train_batch(share_of(rank, world, index), bp.token_mean_loss, options)
            if index == 0 and kind != "none":
                _validate(engine, share_of(rank, world, 7), failing=kind == "failing")
        found.append({"norm": float(result.metrics["grad_norm"]), "weights": weights_of(engine)})
    return found


def _validate(engine: Any, batch: dict[str, torch.Tensor], *, failing: bool) -> None:
    def fail(*_: Any) -> None:
        raise ArithmeticError("told to fail")

    hook = engine.module.blocks[1].mlp.register_forward_hook(fail) if failing else None
    try:
        with engine.eval_mode():
            engine.infer_batch(batch)
    except ArithmeticError:
        assert failing
    else:
        assert not failing
    if hook is not None:
        hook.remove()
