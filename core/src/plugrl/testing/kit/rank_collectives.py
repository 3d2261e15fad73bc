"""Collectives on ranks of a process group, each against what the host computes. Results are lists of findings."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from plugrl.testing.kit.rank_tools import (
    DTYPES,
    REFUSALS,
    Findings,
    Put,
    device,
    every_second,
    part_of_larger,
    plain,
    reduced,
    transposed,
    values,
)

SHAPES: tuple[tuple[int, ...], ...] = ((7,), (3, 4), (), (0,), (70_001,))
FLOATS = (torch.float32, torch.bfloat16)
LATE_S = 0.4
"""How long one rank keeps the others waiting."""


def backend(rank: int, world: int, expected: str) -> list[str]:
    """The group that serves tensors of this device is the platform's."""
    found = Findings()
    found.expect(dist.get_backend() == expected, f"the group's backend is {dist.get_backend()}, expected {expected}")
    assert dist.group.WORLD is not None
    serving = dist.group.WORLD._get_backend(device()).name()
    found.expect(serving == expected, f"tensors on {device().type} are served by {serving}, expected {expected}")
    subgroup = dist.new_group(list(range(world)))
    assert isinstance(subgroup, dist.ProcessGroup)
    serving = subgroup._get_backend(device()).name()
    found.expect(serving == expected, f"in a subgroup they are served by {serving}, expected {expected}")
    dist.barrier()  # A rank that is done at once must not leave while others still connect the subgroup.
    return found


def all_reduce(rank: int, world: int, name: str) -> list[str]:
    """One reduction, in place, over shapes, dtypes and forms of memory."""
    found, op = Findings(), getattr(dist.ReduceOp, name)
    for dtype in FLOATS if name == "AVG" else DTYPES:
        for shape in SHAPES:
            _reduce(found, rank, world, op, plain, shape, dtype, f"all_reduce {name} of {dtype}{list(shape)}")
        _reduce(found, rank, world, op, part_of_larger, (3, 4), dtype, f"all_reduce {name} of a part of a larger one")
        what = f"all_reduce {name} of a transposed matrix"
        _reduce(found, rank, world, op, transposed, (3, 4), dtype, what, may_refuse=True)
    return found


def strided(rank: int, world: int) -> list[str]:
    """A tensor with gaps is reduced as it should, its gaps untouched, or it is refused."""
    found = Findings()
    for dtype in DTYPES:
        what = f"all_reduce of every second element of {dtype}"
        _reduce(found, rank, world, dist.ReduceOp.SUM, every_second, (12,), dtype, what, may_refuse=True)
    return found


def _reduce(
    found: Findings,
    rank: int,
    world: int,
    op: dist.ReduceOp.RedOpType,
    put: Put,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    what: str,
    may_refuse: bool = False,
) -> None:
    tensor, neighbours = put(values(rank, shape, dtype))
    try:
        dist.all_reduce(tensor, op)
    except REFUSALS as error:
        found.expect(may_refuse, f"{what} raises {type(error).__name__}: {error}")
        return
    found.expect_equal(tensor, reduced([values(other, shape, dtype) for other in range(world)], op), what)
    found.expect(not neighbours(), f"{what}: {neighbours()}")


def subgroups(rank: int, world: int) -> list[str]:
    """A group of one rank, one of all, and one made with a timeout, side by side."""
    found = Findings()
    alone = [dist.new_group([other]) for other in range(world)]
    everyone = dist.new_group(list(range(world)))
    tensor = values(rank).to(device())
    dist.all_reduce(tensor, group=alone[rank])
    found.expect_equal(tensor, values(rank), "all_reduce in a group of this rank alone")
    dist.all_reduce(tensor, group=everyone)
    expected = reduced([values(other) for other in range(world)], dist.ReduceOp.SUM)
    found.expect_equal(tensor, expected, "all_reduce in a subgroup of all ranks")
    return found


def all_gather(rank: int, world: int) -> list[str]:
    """Into a list and into one tensor, in the order of ranks."""
    found = Findings()
    for dtype in DTYPES:
        for shape in ((7,), (3, 4), (0,)):
            mine = values(rank, shape, dtype).to(device())
            parts = [values(other, shape, dtype) for other in range(world)]
            into = [torch.zeros_like(mine) for _ in range(world)]
            dist.all_gather(into, mine)
            for other in range(world):
                found.expect_equal(into[other], parts[other], f"all_gather of {dtype}, part of rank {other}")
            whole = torch.zeros((world * shape[0], *shape[1:]), dtype=dtype).to(device())
            dist.all_gather_into_tensor(whole, mine)
            found.expect_equal(whole, torch.cat(parts), f"all_gather_into_tensor of {dtype}")
            found.expect_equal(mine, parts[rank], "all_gather changed its input")
    return found


def reduce_scatter(rank: int, world: int) -> list[str]:
    """From a list and from one tensor; each rank gets its own part, on all ranks."""
    found = Findings()
    for dtype in DTYPES:
        for shape in ((5,), (2, 3)):
            parts = [values(other, (world * shape[0], *shape[1:]), dtype, salt=1) for other in range(world)]
            expected = reduced(parts, dist.ReduceOp.SUM).chunk(world)[rank]
            source = parts[rank].to(device())
            out = torch.full(shape, 77, dtype=dtype).to(device())
            dist.reduce_scatter_tensor(out, source)
            found.expect_equal(out, expected, f"reduce_scatter_tensor of {dtype} on rank {rank}")
            out = torch.full(shape, 77, dtype=dtype).to(device())
            dist.reduce_scatter(out, [part.contiguous() for part in source.chunk(world)])
            found.expect_equal(out, expected, f"reduce_scatter of {dtype} on rank {rank}")
    return found


def broadcast(rank: int, world: int) -> list[str]:
    """From every rank."""
    found = Findings()
    for source in range(world):
        for dtype in DTYPES:
            for shape in ((7,), (), (0,)):
                tensor = values(rank, shape, dtype).to(device())
                dist.broadcast(tensor, source)
                found.expect_equal(tensor, values(source, shape, dtype), f"broadcast of {dtype} from rank {source}")
    return found


def all_to_all(rank: int, world: int) -> list[str]:
    """Equal and unequal parts: rank i sends ``1 + i + j`` elements to rank j."""
    found = Findings()
    for dtype in DTYPES:
        sent = values(rank, (world * 3, 2), dtype).to(device())
        got = torch.zeros_like(sent)
        dist.all_to_all_single(got, sent)
        expected = torch.cat([values(other, (world * 3, 2), dtype).chunk(world)[rank] for other in range(world)])
        found.expect_equal(got, expected, f"all_to_all_single of {dtype}")
    sizes = [[1 + source + target for target in range(world)] for source in range(world)]
    parts = [values(source, (sum(sizes[source]),)).split(sizes[source]) for source in range(world)]
    got = torch.zeros(sum(sizes[source][rank] for source in range(world))).to(device())
    incoming = [sizes[source][rank] for source in range(world)]
    dist.all_to_all_single(got, torch.cat(parts[rank]).to(device()), incoming, sizes[rank])
    expected = torch.cat([parts[source][rank] for source in range(world)])
    found.expect_equal(got, expected, "all_to_all_single of unequal parts")
    return found


def point_to_point(rank: int, world: int) -> list[str]:
    """Blocking both ways, and many at once."""
    found = Findings()
    other = (rank + 1) % world
    for dtype in DTYPES:
        got = torch.zeros(5, dtype=dtype).to(device())
        if rank % 2:
            dist.recv(got, other)
            dist.send(values(rank, (5,), dtype).to(device()), other)
        else:
            dist.send(values(rank, (5,), dtype).to(device()), other)
            dist.recv(got, other)
        found.expect_equal(got, values(other, (5,), dtype), f"recv of {dtype}")
    sent, got = values(rank, (3, 4), salt=2).to(device()), torch.zeros(3, 4).to(device())
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]):
        work.wait()
    found.expect_equal(got, values(other, (3, 4), salt=2), "irecv beside isend")
    return found


def objects(rank: int, world: int) -> list[str]:
    """Python objects of different sizes."""
    found = Findings()
    mine = {"rank": rank, "text": "x" * (100 * rank + 1), "nested": [rank, {"tensor": values(rank)}]}
    everything: list[object] = [None] * world
    dist.all_gather_object(everything, mine)
    for other, item in enumerate(everything):
        good = isinstance(item, dict) and item["rank"] == other and len(item["text"]) == 100 * other + 1
        found.expect(good, f"all_gather_object: part of rank {other} is wrong")
    for source in range(world):
        given: list[object] = [("from", source)] if rank == source else [None]
        dist.broadcast_object_list(given, source)
        found.expect(given == [("from", source)], f"broadcast_object_list from rank {source} gave {given}")
    return found


def barrier(rank: int, world: int) -> list[str]:
    """Nobody leaves before the last one has come; each rank is the last one once."""
    found = Findings()
    for late in range(world):
        dist.barrier()
        if rank == late:
            time.sleep(LATE_S)
        came = time.monotonic()
        dist.barrier()
        left = time.monotonic()
        moments: list[tuple[float, float]] = [(0.0, 0.0)] * world
        dist.all_gather_object(moments, (came, left))
        found.expect(
            left >= moments[late][0],
            f"rank {rank} left a barrier {moments[late][0] - left:.2f} s before rank {late} had come",
        )
    return found


def waiting(rank: int, world: int, names: list[str]) -> list[str]:
    """Results of asynchronous collectives are there when ``wait`` returns, whoever came last and in any order."""
    found = Findings()
    numbers = {op: values(rank, (70_001,), salt=salt).to(device()) for salt, op in enumerate(names)}
    if rank == world - 1:
        time.sleep(LATE_S)
    works = {op: dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=True) for op, tensor in numbers.items()}
    for salt, op in reversed(list(enumerate(names))):
        work = works[op]
        assert work is not None
        work.wait()
        right_after = numbers[op].cpu()
        expected = reduced([values(other, (70_001,), salt=salt) for other in range(world)], getattr(dist.ReduceOp, op))
        found.expect_equal(right_after, expected, f"all_reduce {op} right after wait() returned")
        found.expect(work.is_completed(), f"all_reduce {op} is not complete after wait() returned")
    return found


def gathers_wait(rank: int, world: int) -> list[str]:
    """The same for what gathers and scatters, used in a computation at once."""
    found = Findings()
    mine = values(rank, (world * 4,), salt=5).to(device())
    whole, part = torch.zeros(world * world * 4).to(device()), torch.zeros(4).to(device())
    if rank == 0:
        time.sleep(LATE_S)
    gathering = dist.all_gather_into_tensor(whole, mine, async_op=True)
    scattering = dist.reduce_scatter_tensor(part, mine, async_op=True)
    assert gathering is not None and scattering is not None
    gathering.wait()
    parts = [values(other, (world * 4,), salt=5) for other in range(world)]
    found.expect_equal(whole * 2, torch.cat(parts) * 2, "all_gather_into_tensor used right after wait()")
    scattering.wait()
    expected = reduced(parts, dist.ReduceOp.SUM).chunk(world)[rank]
    found.expect_equal(part + 1, expected + 1, "reduce_scatter_tensor used right after wait()")
    return found
