"""DTensor on ranks of a process group: placements, arithmetic, random numbers, parallel layers."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from plugrl.testing.kit.rank_tools import Findings, device, reduced, values
from plugrl.testing.kit.rank_training import TOLERANCE, Block


def placements(rank: int, world: int) -> list[str]:
    """Distributing, gathering, resharding and summing, for sizes that ranks share evenly and unevenly."""
    found = Findings()
    mesh = init_device_mesh(device().type, (world,))
    for rows in (2 * world, 2 * world + 1):
        whole = values(0, (rows, 6))
        spread = distribute_tensor(whole.to(device()), mesh, [Shard(0)])
        found.expect_equal(spread.to_local(), whole.chunk(world)[rank], f"the shard of rank {rank}")
        found.expect_equal(spread.full_tensor(), whole, "full_tensor of rows")
        across = spread.redistribute(mesh, [Shard(1)])
        found.expect_equal(across.to_local(), whole.chunk(world, dim=1)[rank], "rows turned into columns")
        found.expect_equal(across.full_tensor(), whole, "full_tensor of columns")
        copied = spread.redistribute(mesh, [Replicate()])
        found.expect_equal(copied.to_local(), whole, "a replica")
    part = DTensor.from_local(values(rank, (4, 3)).to(device()), mesh, [Partial()])
    expected = reduced([values(other, (4, 3)) for other in range(world)], dist.ReduceOp.SUM)
    found.expect_equal(part.full_tensor(), expected, "full_tensor of partial sums")
    left, right = values(1, (4 * world, 5)), values(2, (5, 3))
    spread, copied = (
        distribute_tensor(matrix.to(device()), mesh, [placement])
        for matrix, placement in ((left, Shard(0)), (right, Replicate()))
    )
    product = spread @ copied
    assert isinstance(product, DTensor)
    found.expect_close(product.full_tensor(), left @ right, TOLERANCE, "a product of a sharded matrix")
    return found


def parallel_layers(rank: int, world: int) -> list[str]:
    """A block cut by columns and rows gives the outputs and gradients of the whole one."""
    found = Findings()
    mesh = init_device_mesh(device().type, (world,))
    torch.manual_seed(3)
    whole = nn.Sequential(nn.Linear(8, 4 * world), nn.Tanh(), nn.Linear(4 * world, 8))
    cut: nn.Module = nn.Sequential(nn.Linear(8, 4 * world), nn.Tanh(), nn.Linear(4 * world, 8))
    cut.load_state_dict(whole.state_dict())
    cut = parallelize_module(cut.to(device()), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = values(7, (5, 8)) / 8
    expected, got = whole(inputs), cut(inputs.to(device()))
    found.expect_close(got, expected.detach(), TOLERANCE, "the output of a block cut by columns and rows")
    expected.square().sum().backward()
    got.square().sum().backward()
    for name, parameter in cut.named_parameters():
        gradient = parameter.grad
        assert isinstance(gradient, DTensor)
        reference = whole.get_parameter(name).grad
        assert reference is not None
        found.expect_close(gradient.full_tensor(), reference, 10 * TOLERANCE, f"its gradient of {name}")
    return found


def random_numbers(rank: int, world: int) -> list[str]:
    """Replicas agree, shards differ, the seed decides, and a sharded module initialises itself."""
    found = Findings()
    mesh = init_device_mesh(device().type, (world,))
    with warnings.catch_warnings():
        # torch warns where it cannot keep ranks in step; that this is so is what the check finds.
        warnings.simplefilter("ignore")
        torch.manual_seed(11)
        first, second = _draw(mesh, Shard(0), world), _draw(mesh, Shard(0), world)
        replica = _draw(mesh, Replicate(), world)
        torch.manual_seed(11)
        again = _draw(mesh, Shard(0), world)
    _all_same(found, first.full_tensor(), "a sharded tensor, gathered,", world)
    _all_same(found, replica.to_local(), "a replicated tensor", world)
    parts = [part.cpu() for part in first.full_tensor().chunk(world)]
    found.expect(not torch.equal(parts[0], parts[-1]), "two shards have the same numbers: the ranks drew alike")
    found.expect(not torch.equal(first.to_local(), second.to_local()), "two draws gave the same numbers")
    found.expect_equal(again.to_local(), first.to_local().cpu(), "a draw after the same seed")
    with torch.device("meta"):
        block = Block()
    fully_shard(block, mesh=mesh)
    block.to_empty(device=device())
    torch.manual_seed(5)
    for module in (block.norm, block.up, block.down):
        module.reset_parameters()
    weight = block.up.weight
    assert isinstance(weight, DTensor)
    whole = weight.full_tensor()
    _all_same(found, whole, "the weight of a module that initialised itself sharded, gathered,", world)
    halves = whole.cpu().chunk(world)
    found.expect(not torch.equal(halves[0][:4], halves[-1][:4]), "its shards have the same numbers")
    found.expect(0.01 < float(whole.detach().std()) < 1.0, f"its numbers spread by {float(whole.detach().std()):g}")
    return found


def _draw(mesh: object, placement: Shard | Replicate, world: int) -> DTensor:
    tensor = zeros(4 * world, 3, device_mesh=mesh, placements=[placement])  # type: ignore[arg-type]
    return tensor.normal_()  # type: ignore[return-value]


def _all_same(found: Findings, tensor: torch.Tensor, what: str, world: int) -> None:
    mine = tensor.detach().cpu()
    theirs = mine.to(device())
    dist.broadcast(theirs, 0)
    found.expect(torch.equal(theirs.cpu(), mine), f"{what} differs between ranks")
