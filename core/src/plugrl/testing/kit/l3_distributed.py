"""L3: two ranks on two devices, with the platform's own collectives. The bodies on the ranks are in ``rank_*.py``."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from plugrl.testing.kit import rank_checkpoints, rank_collectives, rank_dtensor, rank_training
from plugrl.testing.kit.checks import CheckFailed, CheckSkipped, check
from plugrl.testing.kit.context import Context
from plugrl.testing.rank_pool import RankError, RankPool

WORLD = 2
COLLECTIVE_S = 60.0
TRAINING_S = 150.0
"""Seconds that the ranks have for a check: the first training imports much of torch, perhaps on a busy machine."""

DEADLINE_S = TRAINING_S + 150.0
"""The first check of a process starts the ranks besides, which takes two imports of torch and of the SDK."""

_LINES = 4


def on_ranks(
    kit: Context, function: Callable[..., list[str]], *args: Any, timeout_s: float = COLLECTIVE_S
) -> None:
    """Run ``function(rank, world, *args)`` on the ranks. Raises CheckFailed with what they found or died of."""
    pool = kit.cache.get("ranks")
    if pool is None:
        pool = kit.cache["ranks"] = RankPool(WORLD, platform=kit.platform_name, folder=kit.folder)
        atexit.register(pool.close)
    try:
        answers = pool.run(function, *args, world=WORLD, timeout_s=timeout_s)
    except RankError as error:
        raise CheckFailed(_ends(error)) from error
    found = [f"rank {rank}: {text}" for rank, texts in enumerate(answers) for text in texts]
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise CheckFailed("; ".join(found[:3]) + more)


def averages(kit: Context) -> bool:
    """Whether gradients may be averaged by the collective; else they are summed and divided, as vendors' engines do."""
    return kit.declares("dist.all_reduce.avg")


def _ends(error: RankError) -> str:
    """Shorten the tracebacks of the ranks to where they started and ended."""
    ranks = [text.strip().splitlines() for text in str(error).split("\nTraceback") if text.strip()]
    return "\n".join(line for lines in ranks for line in [lines[0], *lines[1:][-_LINES:]])


# --------------------------------------------------------------------- the group
@check(
    "L3.group.backend",
    capability="dist.native_backend",
    devices=WORLD,
    gate=True,
    deadline_s=DEADLINE_S,
    fix="communication_backend_name() must be a backend that the extension registers for the device, and the process "
    "group that it makes must be the one which serves the device's tensors.",
)
def backend(kit: Context) -> str:
    """Two ranks meet, and the process group that serves tensors of the device is the platform's own."""
    expected = kit.platform.communication_backend_name()
    on_ranks(kit, rank_collectives.backend, expected)
    return expected


@check(
    "L3.barrier.waits",
    capability="dist.barrier",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="barrier() must block until every rank of the group has called it.",
)
def barrier(kit: Context) -> None:
    """Nobody passes a barrier before the last rank has come."""
    on_ranks(kit, rank_collectives.barrier)


# --------------------------------------------------------------------- collectives
@check(
    "L3.all_reduce.sum",
    capability="dist.all_reduce.sum",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="Every rank must contribute, and every element of the result must be written, also at an offset in memory.",
)
def all_reduce_sum(kit: Context) -> None:
    """all_reduce adds fp32, bf16 and int64 of several shapes; a transposed one may be refused."""
    on_ranks(kit, rank_collectives.all_reduce, "SUM")


@check("L3.all_reduce.max", capability="dist.all_reduce.max", devices=WORLD, deadline_s=DEADLINE_S)
def all_reduce_max(kit: Context) -> None:
    """all_reduce finds the largest."""
    on_ranks(kit, rank_collectives.all_reduce, "MAX")


@check(
    "L3.all_reduce.avg",
    capability="dist.all_reduce.avg",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="AVG is the sum divided by the number of ranks. Where the library has none, take dist.all_reduce.avg off the "
    "declaration: engines then sum and divide.",
)
def all_reduce_avg(kit: Context) -> None:
    """all_reduce averages floating-point numbers."""
    on_ranks(kit, rank_collectives.all_reduce, "AVG")


@check("L3.all_reduce.strided", capability="dist.all_reduce.sum", devices=WORLD, deadline_s=DEADLINE_S)
def strided(kit: Context) -> None:
    """all_reduce of a tensor with gaps is right and leaves the gaps alone, or it is refused."""
    if kit.has_virtual_devices:
        raise CheckSkipped("torch's own collectives of host tensors take such a tensor and write into its gaps")
    on_ranks(kit, rank_collectives.strided)


@check("L3.all_reduce.subgroups", capability="dist.all_reduce.sum", devices=WORLD, deadline_s=DEADLINE_S)
def subgroups(kit: Context) -> None:
    """Groups of one rank and of all ranks work beside the default group."""
    on_ranks(kit, rank_collectives.subgroups)


@check(
    "L3.all_reduce.wait",
    capability="dist.all_reduce.sum",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="A work object is complete only when the result is where device code queued from then on will read it.",
)
def waiting(kit: Context) -> None:
    """Results of asynchronous reductions are there when wait() returns, in any order and though a rank came late."""
    names = ["SUM", *(["MAX"] if kit.declares("dist.all_reduce.max") else [])]
    on_ranks(kit, rank_collectives.waiting, names)


@check(
    "L3.all_gather.order",
    capability="dist.all_gather",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="Part i of what is gathered is rank i's.",
)
def all_gather(kit: Context) -> None:
    """all_gather gives every rank's tensor in the order of ranks, into a list and into one tensor."""
    on_ranks(kit, rank_collectives.all_gather)


@check(
    "L3.reduce_scatter.parts",
    capability="dist.reduce_scatter",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="Every rank must get its part of the sum, the last one too.",
)
def reduce_scatter(kit: Context) -> None:
    """reduce_scatter gives each rank its own part of the sum, from a list and from one tensor."""
    on_ranks(kit, rank_collectives.reduce_scatter)


@check("L3.reduce_scatter.wait", capability="dist.reduce_scatter", devices=WORLD, deadline_s=DEADLINE_S)
def gathers_wait(kit: Context) -> None:
    """What was gathered and scattered asynchronously can be computed with right after wait()."""
    on_ranks(kit, rank_collectives.gathers_wait)


@check("L3.broadcast.from_any", capability="dist.broadcast", devices=WORLD, deadline_s=DEADLINE_S)
def broadcast(kit: Context) -> None:
    """broadcast brings the numbers of any rank to all, empty tensors and scalars included."""
    on_ranks(kit, rank_collectives.broadcast)


@check("L3.all_to_all.parts", capability="dist.all_to_all", devices=WORLD, deadline_s=DEADLINE_S)
def all_to_all(kit: Context) -> None:
    """all_to_all exchanges equal and unequal parts."""
    on_ranks(kit, rank_collectives.all_to_all)


@check("L3.p2p.both_ways", capability="dist.p2p", devices=WORLD, deadline_s=DEADLINE_S)
def point_to_point(kit: Context) -> None:
    """send and recv, and their asynchronous forms in both directions at once."""
    on_ranks(kit, rank_collectives.point_to_point)


@check("L3.object.any_size", capability="dist.object", devices=WORLD, deadline_s=DEADLINE_S)
def objects(kit: Context) -> None:
    """Python objects of different sizes are gathered and broadcast."""
    on_ranks(kit, rank_collectives.objects)


# --------------------------------------------------------------------- training
@check("L3.ddp.parity", capability="dist.ddp", devices=WORLD, deadline_s=DEADLINE_S)
def data_parallel(kit: Context) -> None:
    """DistributedDataParallel gives the losses, clipped norms and parameters of one process on the host."""
    on_ranks(kit, rank_training.data_parallel, timeout_s=TRAINING_S)


@check(
    "L3.fsdp2.parity",
    capability="dist.fsdp2",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="fully_shard needs all_gather and reduce_scatter of one tensor, streams, events and resizable storage.",
)
def fully_sharded(kit: Context) -> None:
    """fully_shard gives the losses, clipped norms and parameters of one process on the host, and really shards."""
    on_ranks(kit, rank_training.fully_sharded, averages(kit), timeout_s=TRAINING_S)


@check("L3.fsdp2.mixed_precision", capability="dist.fsdp2.mixed_precision", devices=WORLD, deadline_s=DEADLINE_S)
def mixed_precision(kit: Context) -> None:
    """With bf16 parameters and fp32 reductions it agrees with the same arithmetic on the host, in bf16 for sure."""
    on_ranks(kit, rank_training.mixed_precision, averages(kit), timeout_s=TRAINING_S)


@check("L3.hsdp.parity", capability="dist.hsdp", devices=WORLD, deadline_s=DEADLINE_S)
def hybrid(kit: Context) -> None:
    """Replicas of shards, on meshes of 1 x 2 and 2 x 1, give what one process gives."""
    on_ranks(kit, rank_training.hybrid, averages(kit), timeout_s=TRAINING_S)


@check("L3.dtensor.placements", capability="dist.dtensor", devices=WORLD, deadline_s=DEADLINE_S)
def placements(kit: Context) -> None:
    """Tensors are distributed, gathered, resharded and summed, with even and uneven shards."""
    on_ranks(kit, rank_dtensor.placements, timeout_s=TRAINING_S)


@check("L3.dtensor.parallel_layers", capability="dist.dtensor", devices=WORLD, deadline_s=DEADLINE_S)
def parallel_layers(kit: Context) -> None:
    """Layers cut by columns and rows give the outputs and gradients of whole ones."""
    on_ranks(kit, rank_dtensor.parallel_layers, timeout_s=TRAINING_S)


@check(
    "L3.dtensor.random",
    capability="dist.dtensor.random",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="torch reads seed and offset from a generator state of 16 bytes: two 64-bit numbers, the offset second.",
)
def random_numbers(kit: Context) -> None:
    """Random numbers of a DTensor: replicas agree, shards differ, the seed decides, sharded modules initialise."""
    on_ranks(kit, rank_dtensor.random_numbers, timeout_s=TRAINING_S)


# --------------------------------------------------------------------- checkpoints
@check("L3.ckpt.sharded", capability="ckpt.sharded", devices=WORLD, deadline_s=DEADLINE_S)
def sharded_checkpoint(kit: Context) -> None:
    """A sharded model and its optimizer are written, read, and go on bit for bit; one process reads the same files."""
    on_ranks(kit, rank_checkpoints.write_and_read, str(kit.folder / "sharded"), averages(kit), timeout_s=TRAINING_S)


@check("L3.ckpt.from_rank_0", capability="ckpt.sharded", devices=WORLD, deadline_s=DEADLINE_S)
def state_from_rank_0(kit: Context) -> None:
    """A whole state that only rank 0 has is broadcast into the shards of all ranks."""
    on_ranks(kit, rank_checkpoints.broadcast_whole, averages(kit), timeout_s=TRAINING_S)


@check(
    "L3.ckpt.async",
    capability="ckpt.async",
    devices=WORLD,
    deadline_s=DEADLINE_S,
    fix="async_save copies to the host first; the process group must list the host among its device types.",
)
def background_checkpoint(kit: Context) -> None:
    """A checkpoint that is written in the background holds the state at the call, though training goes on."""
    folder = str(kit.folder / "background")
    on_ranks(kit, rank_checkpoints.write_in_background, folder, averages(kit), timeout_s=TRAINING_S)
