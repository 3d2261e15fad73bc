"""What runs on the ranks of the tests."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import time
from typing import Any

import bc_policy
import torch
import torch.distributed as dist

from plugrl.config import load_config
from plugrl.metric import Metric
from plugrl.runners.config_path import sft_sources
from plugrl.runners.sft_launched import run_sft_launched
from plugrl.runtime.launched import launched
from plugrl.workers.reduction import MetricReducer


def train(rank: int, world: int, port: int, arguments: list[str], fail: bool = False) -> dict[str, Any]:
    """Run ``plugrl sft`` as this rank; returns what it printed and logged, and the error that it ended with."""
    bc_policy.register()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    launch = launched()
    assert launch is not None and launch.rank == rank and launch.world_size == world

    def read() -> Any:
        path, overrides = sft_sources(arguments)
        return load_config(path, overrides, task="sft")

    said, error, began = io.StringIO(), "", time.monotonic()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(said):
            run_sft_launched(launch, read)
    except (Exception, SystemExit) as raised:
        error = f"{type(raised).__name__}: {raised}"
        if not fail:
            raise
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(logging.WARNING)
        if dist.is_initialized():
            dist.destroy_process_group()
    return {"said": said.getvalue(), "error": error, "seconds": time.monotonic() - began}


def reduce_metrics(rank: int, world: int) -> list[Any]:
    """Reduce metrics whose names, order and weights differ between the ranks."""
    reduce = MetricReducer(dist.group.WORLD)
    found: list[Any] = []
    one = {"a": Metric(1.0), "b": Metric(100.0)}
    found.append(reduce(one if rank == 0 else dict(reversed(one.items()))))
    mine: dict[str, Metric] = {
        "loss": Metric(float(rank + 1), "mean", weight=1 + 2 * rank),
        "slowest": Metric(float(rank), "max"),
        "least": Metric(float(rank), "min"),
        "share": Metric(2.0 * rank, "sum"),
        "lr": Metric(0.5 + rank, "none"),
    }
    mine[f"only_{rank}"] = Metric(7.0 + rank)
    found.append(reduce(mine))
    found.append(reduce(mine))
    found.append(reduce({}))
    try:
        reduce({"x": Metric(1.0, "max" if rank else "min")})
    except ValueError as error:
        found.append(str(error))
    # Still in step with each other.
    found.append(reduce({"a": Metric(float(rank))}))
    torch.distributed.barrier()
    return found


def train_differently(rank: int, world: int, port: int, path: str) -> dict[str, Any]:
    """Run with another learning rate on each rank."""
    return train(rank, world, port, [path, f"optimizer.lr=1e-{rank + 3}"], fail=True)
