"""Saving and loading 1 GB of model and optimizer against torch.save and against writing the same bytes to files.

The model has 83 million fp32 parameters; with AdamW's two moments they make 1.0 GB. One process saves safetensors, two
processes save dcp shards (``fsdp2``). Everything is measured through the store, as a run does it: hashes, syncs,
manifest and rename included. ``raw`` writes as many bytes to as many files from as many processes and syncs each once.
The kinds take turns, so that other users of the disk disturb all alike; the ratio is of the medians. An asynchronous
save is judged by how long training waits for it. Exits with 1 when a limit is missed: 1.5 times raw, a quarter of a
synchronous save.

    python benchmarks/checkpoint.py [--rounds 5] [--megabytes 1000] [--folder DIR] [--json FILE] [--only single sharded]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from plugrl.checkpoints import CheckpointStore, verify
from plugrl.engines.registry import EngineRegistry
from plugrl.metric import Metric
from plugrl.models import BasePolicy, register_model
from plugrl.platforms import set_platform
from plugrl.platforms.cpu import CpuPlatform
from plugrl.plugins import load_plugins

WIDTH = 1024
PIECE = 8 << 20
SAVE_LIMIT, STALL_LIMIT = 1.5, 0.25
LAYOUTS = {"single": (1, "ddp", "safetensors"), "sharded": (2, "fsdp2", "dcp")}


class Block(nn.Module):
    """A unit of sharding."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(self.up(hidden))


class Stack(BasePolicy):
    """Blocks, and a loss of them."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def wrap_units(self) -> tuple[str, ...]:
        return ("Block",)

    def default_forward(self, forward_inputs: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        hidden = forward_inputs["x"]
        for block in self.blocks:
            hidden = block(hidden)
        return {"logprobs": hidden.mean(dim=1, keepdim=True)}


def build(config: Mapping[str, Any], torch_dtype: torch.dtype | None = None) -> Stack:
    """Builder of the model type ``checkpoint_benchmark``."""
    return Stack(int(config["blocks"])).to(torch_dtype or torch.float32)


def loss_of(outputs: Mapping[str, torch.Tensor], batch: Any, context: Any) -> tuple[torch.Tensor, dict[str, Metric]]:
    """Any loss with a gradient everywhere."""
    return outputs["logprobs"].square().mean(), {}


def make_engine(backend: str, blocks: int, checkpoint: dict[str, Any]) -> Any:
    """An engine with optimizer state."""
    kind = EngineRegistry.get_engine_cls("language_model", backend)
    engine = kind({"model_type": "checkpoint_benchmark", "blocks": blocks}, {"dtype": "fp32"}, {"lr": 1e-4}, checkpoint)
    engine.initialize()
    with engine.train_mode():
        engine.train_batch({"x": torch.randn(2, WIDTH)}, loss_of)
    return engine


def write_raw(path: Path, sizes: list[int], data: memoryview) -> None:
    """Write files of the given sizes and sync each once."""
    for index, size in enumerate(sizes):
        with open(path / f"raw-{os.getpid()}-{index}", "wb", buffering=0) as stream:
            left = size
            while left:
                left -= stream.write(data[: min(left, PIECE)])
            os.fsync(stream.fileno())


class Bench:
    """One rank: measures on rank 0, between barriers."""

    def __init__(self, rank: int, world: int, backend: str, fmt: str, folder: Path, blocks: int) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.engine = make_engine(backend, blocks, {"format": fmt})
        parameters = sum(p.to_local().nbytes if hasattr(p, "to_local") else p.nbytes
                         for p in self.engine.module.parameters())  # fmt: skip
        self.sizes = [parameters, 2 * parameters]
        self.data = memoryview(os.urandom(PIECE))
        self.seconds: dict[str, list[float]] = {}
        self.parts: dict[str, list[float]] = {}
        self.store = CheckpointStore(folder / "checkpoints", max_to_keep=1)
        self.step = 0

    def timed(self, name: str, work: Callable[[], None]) -> None:
        """Run ``work`` on all ranks and keep how long the slowest took."""
        self.barrier()
        began = time.perf_counter()
        work()
        self.barrier()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)

    def barrier(self) -> None:
        """Wait for the other ranks."""
        if self.world > 1:
            dist.barrier()

    def raw(self) -> None:
        """The same bytes as files."""
        write_raw(self.folder, self.sizes, self.data)

    def save(self, asynchronous: bool) -> None:
        """One save through the store, as a run does it."""
        self.step += 1
        self.engine.checkpoint_config["async_save"] = asynchronous
        path: list[Any] = [None]
        context = self.store.write(self.step)
        if self.rank == 0:
            path = [str(context.__enter__())]
        if self.world > 1:
            dist.broadcast_object_list(path)
        began = time.perf_counter()
        self.engine.save_checkpoint(path[0], self.step)
        self.note("engine", time.perf_counter() - began, asynchronous)
        began = time.perf_counter()
        if self.rank == 0:
            context.__exit__(None, None, None)
        self.note("manifest and rename", time.perf_counter() - began, asynchronous)
        for name, taken in self.engine.saver.seconds.items():
            self.note(name, taken, asynchronous)

    def note(self, name: str, seconds: float, asynchronous: bool) -> None:
        """Keep what a part of a save took."""
        self.parts.setdefault(f"{'async' if asynchronous else 'sync'} {name}", []).append(seconds)

    def finish(self) -> None:
        """Wait for what is written in the background."""
        if self.rank == 0:
            self.store.finish()
        self.engine.finish_saving()

    def load(self) -> None:
        """Read the newest checkpoint into the engine."""
        self.engine.load_checkpoint(str(self.store.root / "last"))

    def torch_save(self) -> None:
        """torch.save of both state dicts into one file, synced."""
        state = {"model": self.engine.module.state_dict(), "optimizer": self.engine.optimizer.state_dict()}
        with open(self.folder / "torch.pt", "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())

    def torch_load(self) -> None:
        """torch.load, then both load_state_dict."""
        state = torch.load(self.folder / "torch.pt", weights_only=True)
        self.engine.module.load_state_dict(state["model"])
        self.engine.optimizer.load_state_dict(state["optimizer"])

    def clear(self) -> None:
        """Remove raw files, so that the disk is as empty for the next."""
        self.barrier()
        if self.rank == 0:
            for path in self.folder.glob("raw-*"):
                path.unlink()
        self.barrier()

    def round(self, torch_too: bool) -> None:
        """Every kind once."""
        self.timed("raw", self.raw)
        self.clear()
        self.timed("save", lambda: self.save(False))
        self.timed("load", self.load)
        if self.rank == 0:
            self.timed_alone("verify", lambda: verify(self.store.root / "last"))
        self.timed("async: training waits", lambda: self.save(True))
        self.timed("async: until complete", self.finish)
        if torch_too:
            self.timed("torch.save", self.torch_save)
            self.timed("torch.load", self.torch_load)
            (self.folder / "torch.pt").unlink()

    def timed_alone(self, name: str, work: Callable[[], Any]) -> None:
        """Time what one rank does."""
        began = time.perf_counter()
        work()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)


def run_rank(rank: int, layout: str, folder: str, blocks: int, rounds: int) -> None:
    """One process."""
    world, backend, fmt = LAYOUTS[layout]
    torch.set_num_threads(1)
    load_plugins()
    register_model("checkpoint_benchmark", build)
    set_platform(CpuPlatform())
    root = Path(folder)
    if world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{root / 'meet'}", rank=rank, world_size=world,
                                timeout=timedelta(seconds=120))  # fmt: skip
    bench = Bench(rank, world, backend, fmt, root, blocks)
    bench.round(world == 1)  # memory is allocated, caches are filled
    bench.seconds.clear()
    bench.parts.clear()
    for _ in range(rounds):
        bench.round(world == 1)
    if rank == 0:
        result = {"seconds": bench.seconds, "parts": bench.parts, "bytes": world * sum(bench.sizes)}
        (root / "result.json").write_text(json.dumps(result))
    bench.barrier()
    if world > 1:
        dist.destroy_process_group()


def measure(layout: str, parent: str | None, blocks: int, rounds: int) -> dict[str, Any]:
    """Run one layout in its own processes."""
    folder = tempfile.mkdtemp(prefix="plugrl-checkpoint-", dir=parent)
    try:
        mp.spawn(run_rank, (layout, folder, blocks, rounds), nprocs=LAYOUTS[layout][0])
        return json.loads((Path(folder) / "result.json").read_text())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(layout: str, result: dict[str, Any]) -> bool:
    """Print one layout; returns whether it keeps the limits."""
    world, backend, fmt = LAYOUTS[layout]
    medians = {name: statistics.median(values) for name, values in result["seconds"].items()}
    print(f"\n{fmt}, {world} process{'es' if world > 1 else ''} ({backend}), {result['bytes'] / 1e9:.2f} GB")
    for name, seconds in medians.items():
        spread = f"{min(result['seconds'][name]):.2f} to {max(result['seconds'][name]):.2f}"
        print(f"  {name:24} {seconds:7.2f} s  ({spread})  {result['bytes'] / seconds / 1e6:7.0f} MB/s")
    for name, values in result["parts"].items():
        print(f"    {name:28} {statistics.median(values):6.3f} s")
    ratio, stall = medians["save"] / medians["raw"], medians["async: training waits"] / medians["save"]
    print(f"  save / raw {ratio:.2f} (limit {SAVE_LIMIT}), wait / synchronous save {stall:.2f} (limit {STALL_LIMIT})")
    result["save / raw"], result["stall / save"] = ratio, stall
    return ratio <= SAVE_LIMIT and stall <= STALL_LIMIT


def main() -> None:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", help="where to write; the default is the folder for temporary files")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    options = parser.parse_args()
    blocks = max(1, round(options.megabytes * 1e6 / 12 / (8 * WIDTH**2 + 5 * WIDTH)))
    results = {layout: measure(layout, options.folder, blocks, options.rounds) for layout in options.only}
    kept = [report(layout, result) for layout, result in results.items()]
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
