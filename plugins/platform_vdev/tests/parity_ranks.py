"""Training by the FSDP engines on one platform: what the ranks of the parity test do, alike on every platform."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.attention import SDPBackend, sdpa_kernel

from plugrl.engines import EngineRegistry
from plugrl.engines.base import BatchOptions
from plugrl.models import register_model
from plugrl.platforms import get_platform

sys.path.insert(0, str(Path(__file__).parents[2] / "engine_fsdp" / "tests"))
import block_policy as bp  # noqa: E402

ROWS, STEPS = 8, 4
OPTIM = {"lr": 1e-2, "clip_grad": 0.1, "lr_scheduler_type": "cosine", "lr_warmup_steps": 1,
         "total_training_steps": 10, "eps": 1e-3}  # fmt: skip


def train(
    rank: int, world: int, backend: str, config: dict[str, Any], variables: dict[str, str] | None = None
) -> dict[str, Any]:
    """Losses, norms and weights of a few steps, each over several micro-batches and with a gradient that is cut."""
    os.environ.update(variables or {})
    try:
        return _train(world, backend, config)
    finally:
        for name in variables or {}:
            del os.environ[name]


def train_under_watch(
    rank: int, world: int, backend: str, config: dict[str, Any], variables: dict[str, str]
) -> dict[str, Any]:
    """The same, and which gloo groups were made meanwhile beside the transport of vccl itself."""
    made: list[str] = []
    helper = distributed_c10d._new_process_group_helper

    def watched(*args: Any, **kwargs: Any) -> Any:
        made.append(str(args[3]))
        return helper(*args, **kwargs)

    distributed_c10d._new_process_group_helper = watched
    try:
        found = train(rank, world, backend, config, variables)
    finally:
        distributed_c10d._new_process_group_helper = helper
    return {**found, "gloo_groups": [name for name in made if "vccl" not in name]}


def _train(world: int, backend: str, config: dict[str, Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    register_model("engine_test_blocks", bp.build, force=True)
    platform = get_platform()
    cls = EngineRegistry.get_engine_cls("language_model", backend)
    engine = cls({"model_type": "engine_test_blocks"}, config, OPTIM, None)
    engine.initialize()
    placed = {str(parameter.device) for parameter in engine.module.parameters()}
    losses, norms = [], []
    # One attention kernel everywhere, as far as a device has the choice.
    with engine.train_mode(), sdpa_kernel(SDPBackend.MATH):
        for step in range(STEPS):
            rows = bp.make_rows(ROWS, seed=step)
            cut = len(rows["input_ids"]) // world
            share = bp.slice_rows(rows, rank * cut, (rank + 1) * cut)
            result = engine.train_batch(share, bp.token_mean_loss, BatchOptions(micro_batch_size=1))
            total = torch.tensor(result.loss, dtype=torch.float32).to(engine.device)
            dist.all_reduce(total)
            losses.append(float(total) / world)
            norms.append(float(result.metrics["grad_norm"]))
    weights = {name: tensor.detach().cpu().float() for name, tensor in engine.get_per_tensor_param()[0]}
    return {
        "losses": losses,
        "norms": norms,
        "weights": {name: tensor.flatten().tolist() for name, tensor in weights.items()},
        "devices": sorted(placed),
        "engine": f"{cls.__module__}:{cls.__qualname__}",
        "platform": platform.device_name,
        "backend": dist.get_backend(),
        "accelerators": [name for name in ("cuda", "xpu") if getattr(torch, name).is_initialized()],
    }
