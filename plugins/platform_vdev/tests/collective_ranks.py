"""What the ranks of the tests of vccl do. Each function runs on every rank, on its own device."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from plugrl_platform_vdev.collectives.group import VcclGroup

DEVICE = "vdev"


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables of the device for a block; it reads them at each collective."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def on_device(values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on this rank's device."""
    return torch.tensor(values, dtype=dtype).to(f"{DEVICE}:{dist.get_rank()}")


def host(tensor: torch.Tensor) -> list[Any]:
    """Its values."""
    return tensor.cpu().tolist()


def reductions(rank: int, world: int) -> dict[str, Any]:
    """Sums, averages and maxima, in several dtypes, of tensors with and without elements."""
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for op in ("SUM", "MAX", "AVG"):
            if op == "AVG" and dtype == torch.int64:
                continue
            tensor = on_device([rank + 1, 10 * (rank + 1)], dtype)
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
            found[f"{op} {dtype}"] = host(tensor)
    whole = on_device([[1.0, 2.0], [3.0, 4.0]])
    dist.all_reduce(whole.t())
    found["transposed"] = host(whole)
    empty = on_device([])
    dist.all_reduce(empty)
    rooted = on_device([rank + 1.0])
    dist.reduce(rooted, dst=1)
    found["reduce"] = host(rooted)
    part = on_device([0.0, 0.0])
    dist.reduce_scatter_single(part, on_device([1.0, 2.0, 3.0, 4.0]), op=dist.ReduceOp.AVG)
    found["reduce_scatter_single"] = host(part)
    dist.reduce_scatter(part, [on_device([1.0, 2.0]), on_device([3.0, 4.0])])
    found["reduce_scatter"] = host(part)
    several = [on_device([1.0]), on_device([2.0, 3.0])]
    with dist._coalescing_manager(device=several[0].device):
        for tensor in several:
            dist.all_reduce(tensor)
    found["coalesced"] = [host(tensor) for tensor in several]
    return found


def movements(rank: int, world: int) -> dict[str, Any]:
    """Everything that only moves values."""
    found: dict[str, Any] = {}
    own = on_device([rank, 10 * rank], torch.int64)
    parts = [torch.zeros_like(own) for _ in range(world)]
    dist.all_gather(parts, own)
    found["all_gather"] = [host(part) for part in parts]
    flat = torch.zeros(2 * world, dtype=torch.int64).to(own.device)
    dist.all_gather_single(flat, own)
    found["all_gather_single"] = host(flat)
    dist.broadcast(own, src=1)
    found["broadcast"] = host(own)
    exchanged = torch.zeros(3).to(own.device)
    splits = [1, 2] if rank == 0 else [2, 1]
    dist.all_to_all_single(
        exchanged, on_device([rank * 10.0 + index for index in range(3)]), output_split_sizes=[1, 2] if rank == 0 else
        [2, 1], input_split_sizes=splits,
    )  # fmt: skip
    found["all_to_all_single"] = host(exchanged)
    received = [torch.zeros(1).to(own.device) for _ in range(world)]
    dist.all_to_all(received, [on_device([rank * 10.0 + index]) for index in range(world)])
    found["all_to_all"] = [host(part) for part in received]
    gathered = [torch.zeros(1).to(own.device) for _ in range(world)] if rank == 0 else None
    dist.gather(on_device([rank + 1.0]), gathered, dst=0)
    found["gather"] = None if gathered is None else [host(part) for part in gathered]
    got = torch.zeros(1).to(own.device)
    dist.scatter(got, [on_device([5.0]), on_device([6.0])] if rank == 0 else None, src=0)
    found["scatter"] = host(got)
    big, other = torch.full((1 << 18,), float(rank)).to(own.device), torch.zeros(1 << 18).to(own.device)
    requests = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, big, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)
    ])  # fmt: skip
    for request in requests:
        request.wait()
        request.wait()
    found["exchanged"] = [float(other.cpu().min()), float(other.cpu().max())]
    objects: list[Any] = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    host_tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(host_tensor)
    found["host tensor"] = host_tensor.tolist()
    group = dist.new_group([0, 1])
    assert group is not None
    found["functional"] = host(functional.all_reduce(on_device([1.0]), "sum", group) + 0)
    found["names"] = [group._get_backend_name(), dist.get_backend(group), str(group._device_types)]
    return found


def waiting(rank: int, world: int) -> dict[str, Any]:
    """A result that nobody waits for is not there; all ranks pass a barrier after the last has come."""
    tensor = on_device([1.0])
    work = dist.all_reduce(tensor, async_op=True)
    before = host(tensor)
    work.wait()
    future = work.get_future()
    if rank == 0:
        time.sleep(0.3)
    start = time.monotonic()
    dist.barrier()
    return {"before": before, "after": host(tensor), "done": future.done(), "waited": time.monotonic() - start}


def refused(rank: int, world: int) -> list[str]:
    """The texts of what is refused, without a rank that waits for another."""
    texts = []
    both = [on_device([1.0]), torch.ones(1)]
    attempts = (
        lambda: dist.group.WORLD.allreduce(both, dist.AllreduceOptions()),
        lambda: dist.all_gather_single(torch.zeros(3).to(both[0].device), both[0]),
        lambda: dist.all_reduce(both[0], op=dist.ReduceOp.PREMUL_SUM(0.5)),
    )
    for attempt in attempts:
        try:
            attempt()
        except (ValueError, RuntimeError) as error:
            texts.append(f"{type(error).__name__}: {error}")
    with environment(VDEV_NO_AVG="1"):
        try:
            dist.all_reduce(both[0], op=dist.ReduceOp.AVG)
        except RuntimeError as error:
            texts.append(f"{type(error).__name__}: {error}")
    with environment(VDEV_NO_HOST="1"):
        try:
            dist.all_reduce(torch.ones(1))
        except ValueError as error:
            texts.append(f"{type(error).__name__}: {error}")
        objects: list[Any] = [None] * world
        dist.all_gather_object(objects, rank)
        texts.append(str(objects))
    return texts


def broken(rank: int, world: int, variable: str, value: str) -> dict[str, Any]:
    """The same few collectives under a fault or as a mutant."""
    with environment(**{variable: value}):
        found: dict[str, Any] = {}
        average = on_device([1.0 + rank, 3.0 + rank])
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        found["average"] = host(average)
        greatest = on_device([float(rank)])
        dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
        found["greatest"] = host(greatest)
        gathered = torch.zeros(world).to(average.device)
        dist.all_gather_single(gathered, on_device([float(rank)]))
        found["gathered"] = host(gathered)
        part = on_device([-1.0])
        dist.reduce_scatter_single(part, on_device([1.0, 2.0]))
        found["scattered"] = host(part)
        found["backend"] = dist.group.WORLD._get_backend_name()  # type: ignore[union-attr]
        if rank == 0:
            time.sleep(0.2)
        start = time.monotonic()
        dist.barrier()
        found["waited"] = time.monotonic() - start
    return found


def failing(rank: int, world: int, fault: str, deadline_s: float) -> tuple[str, float]:
    """The error of a collective under a fault, and the seconds until it came.

    On a busy machine ranks connect seconds apart: the group gets its deadline once they have, and no rank leaves before
    the last one has seen its error.
    """
    text = ""
    with environment(VDEV_FAULT=fault):
        group = dist.new_group(timeout=timedelta(seconds=60))
        assert isinstance(group, VcclGroup)
        group.set_timeout(timedelta(seconds=deadline_s))
        start = time.monotonic()
        try:
            for _ in range(3):
                dist.all_reduce(on_device([1.0]), group=group)
        except RuntimeError as error:
            text = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
    dist.barrier()
    return text, seconds


def ddp_step(rank: int, world: int) -> list[float]:
    """A gradient that DistributedDataParallel has averaged."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1).to(f"{DEVICE}:{rank}")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped(on_device([[rank + 1.0, 1.0]])).sum().backward()
    assert model.weight.grad is not None
    return host(model.weight.grad[0])
