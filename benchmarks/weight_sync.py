"""Bringing the weights of a model to a rollout on the same node: handle, patch, bucket, full and a gloo broadcast.

One process trains, `--receivers` processes generate. The model is `--megabytes` of bf16 parameters in the shapes of a
decoder. Before each transfer the trainer does an AdamW step on fp32 masters at a small learning rate, from which the
bf16 weights are cast, as in mixed precision: this is not timed. A transfer is timed at the sender, from the call until
every receiver has loaded the weights into its model and said so. The gloo broadcast writes straight into the receivers'
parameters, tensor by tensor, and ends with a barrier. All ways take turns in one run, in the same processes; figures
are medians, ratios are of medians; the first transfers, which allocate memory, stand beside them. Digests prove that
every receiver has the sender's bits.

    python benchmarks/weight_sync.py [--megabytes 500] [--receivers 1] [--turns 5] [--json FILE]

Exits with 1 when handle is less than 5 times faster than the broadcast, or a patch has a tenth of the bytes or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from plugrl.config.schema.weight_sync import WeightSyncConfig
from plugrl.runtime.sync import Received, WeightReceiver, WeightRoute, WeightSender, WeightSource, specs_of

KINDS = ("handle", "patch", "bucket")
LEARNING_RATE = 1e-6
HIDDEN, INNER = 2048, 5632
FASTER, SMALLER = 5.0, 0.1
WARM_UP = 2
"""Turns that do not count: two images alternate."""


@dataclass(frozen=True)
class Row:
    """Medians of one way: seconds, and the share of the model's bytes that travelled; first: of the warm-up turns."""

    way: str
    seconds: float
    fastest: float
    first: tuple[float, ...]
    share_of_bytes: float


def model_of(megabytes: int) -> dict[str, torch.Tensor]:
    """Make bf16 weights in the shapes of decoder layers until they have that size."""
    noise = torch.randn(HIDDEN * INNER, generator=torch.Generator().manual_seed(0))
    shapes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN // 4, HIDDEN), "o": (HIDDEN, HIDDEN), "up": (INNER, HIDDEN),
              "down": (HIDDEN, INNER), "norm": (HIDDEN,)}  # fmt: skip
    state: dict[str, torch.Tensor] = {}
    left, layer = megabytes * 2**20, 0
    while left > 0:
        for name, shape in shapes.items():
            rows = shape if len(shape) == 1 else (max(1, min(shape[0], left // (2 * shape[1]))), shape[1])
            tensor = _cut(noise, rows).mul(0.02).bfloat16()
            state[f"layers.{layer}.{name}"] = tensor
            left -= tensor.nbytes
            if left <= 0:
                break
        layer += 1
    return state


def _cut(noise: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of noise: the same numbers for every layer, which is quick and does no harm here."""
    return noise[: torch.Size(shape).numel()].reshape(shape)


class Trainer:
    """fp32 masters, AdamW, and bf16 weights cast from them. Gradients are noise: what counts is how much changes."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state
        self._masters = {name: tensor.float() for name, tensor in state.items()}
        self._noise = torch.randn(HIDDEN * INNER, generator=torch.Generator().manual_seed(1))

    def step(self) -> None:
        """Do what the first AdamW step does: every element moves by about the learning rate, in some direction."""
        for name, master in self._masters.items():
            moved = torch.nn.Parameter(master)
            moved.grad = _cut(self._noise, tuple(master.shape))
            torch.optim.AdamW([moved], lr=LEARNING_RATE, fused=True).step()
            self.state[name].copy_(master)


def digest(state: dict[str, torch.Tensor]) -> int:
    """Return a checksum of all bits, in the order of the names."""
    sums = [int(state[name].detach().view(-1).view(torch.int64).sum()) for name in sorted(state)]
    return zlib.crc32(repr(sums).encode())


def route_of(kind: str, folder: str, receivers: int) -> WeightRoute:
    """Return the route of one kind between the processes of this benchmark."""
    options = WeightSyncConfig(type=kind)
    return WeightRoute(
        name=kind, directory=folder, receivers=receivers, kind=kind, bucket_bytes=64 * 2**20, options=options
    )


def join(folder: str, rank: int, world: int) -> None:
    """Join the process group of all."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def broadcast(state: dict[str, torch.Tensor]) -> None:
    """Send all tensors from rank 0 by gloo."""
    for tensor in state.values():
        dist.broadcast(tensor, 0)


def receive(rank: int, folder: str, receivers: int, megabytes: int, turns: int) -> None:
    """Be a rollout: load what comes, and check that it is what was sent."""
    join(folder, rank, receivers + 1)
    own = {name: torch.zeros_like(tensor) for name, tensor in model_of(megabytes).items()}
    ends = {kind: WeightReceiver(route_of(kind, folder, receivers), rank - 1) for kind in KINDS}
    models: dict[str, dict[str, torch.Tensor]] = {}

    def load(kind: str, received: Received) -> None:
        # What the rollout backend of Hugging Face models does: a frozen copy takes over host tensors that last.
        model = models.setdefault(kind, {name: torch.nn.Parameter(t, requires_grad=False) for name, t in own.items()})
        for name, tensor in received.tensors:
            model[name].data = tensor

    for turn in range(turns + WARM_UP):
        for kind in KINDS:
            dist.barrier()
            ends[kind].apply(turn, lambda received, version, kind=kind: load(kind, received))
            dist.barrier()
            check(digest(models[kind]), kind)
        dist.barrier()
        broadcast(own)
        dist.barrier()
        check(digest(own), "broadcast")
    for end in ends.values():
        end.close()
    dist.destroy_process_group()


def check(found: int, way: str, mine: bool = False) -> None:
    """Compare the checksum of the sender with that of all receivers."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, found)
    if len(set(values)) != 1:
        raise SystemExit(f"{way}: a receiver has other weights than the sender.")


def measure(folder: str, receivers: int, megabytes: int, turns: int) -> list[Row]:
    """Be the trainer, and time every way in every turn; the first two turns warm up."""
    join(folder, 0, receivers + 1)
    trainer = Trainer(model_of(megabytes))
    state = trainer.state
    size = sum(tensor.nbytes for tensor in state.values())
    ends = {kind: WeightSender(route_of(kind, folder, receivers)) for kind in KINDS}
    seconds: dict[str, list[float]] = {way: [] for way in (*KINDS, "gloo broadcast")}
    shares: dict[str, list[float]] = {way: [] for way in seconds}

    def timed(way: str, send: Callable[[], float]) -> None:
        dist.barrier()
        started = time.perf_counter()
        share = send()
        dist.barrier()
        seconds[way].append(time.perf_counter() - started)
        shares[way].append(share)
        check(digest(state), way)

    def sync(kind: str, turn: int) -> float:
        source = WeightSource(tensors=state.items(), specs=specs_of(state.items()))
        return ends[kind].send(source, turn).payload_bytes / size

    def gloo() -> float:
        broadcast(state)
        return 1.0

    for turn in range(turns + WARM_UP):
        trainer.step()
        for kind in KINDS:
            timed(kind, lambda kind=kind, turn=turn: sync(kind, turn))
        timed("gloo broadcast", gloo)
    for end in ends.values():
        end.close()
    dist.destroy_process_group()
    return [
        Row(way, statistics.median(taken[WARM_UP:]), min(taken[WARM_UP:]), tuple(taken[:WARM_UP]),
            statistics.median(shares[way][WARM_UP:]))
        for way, taken in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--receivers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments: tuple[Any, ...] = (folder, given.receivers, given.megabytes, given.turns)
        context = mp.get_context("spawn")
        processes = [context.Process(target=receive, args=(rank + 1, *arguments)) for rank in range(given.receivers)]
        for process in processes:
            process.start()
        try:
            rows = measure(*arguments)
            for process in processes:
                process.join(60)
        finally:
            for process in processes:
                process.kill()
    by_way = {row.way: row for row in rows}
    gloo = by_way["gloo broadcast"].seconds
    print(f"{given.megabytes} MiB of bf16 weights to {given.receivers} receivers, median of {given.turns}")
    print(f"{'way':16}{'seconds':>10}{'fastest':>10}{'first two':>14}{'of the bytes':>14}{'against gloo':>14}")
    for row in rows:
        ratio = gloo / row.seconds
        first = " ".join(f"{seconds:.2f}" for seconds in row.first)
        times = f"{row.seconds:10.3f}{row.fastest:10.3f}{first:>14}"
        print(f"{row.way:16}{times}{row.share_of_bytes:14.1%}{ratio:13.1f}x")
    if given.json:
        given.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], **vars(given), "json": None}))
    slow, large = gloo / by_way["handle"].seconds < FASTER, by_way["patch"].share_of_bytes >= SMALLER
    sys.exit(1 if slow or large else 0)


if __name__ == "__main__":
    main()
