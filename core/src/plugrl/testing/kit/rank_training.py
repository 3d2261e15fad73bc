"""Training on ranks of a process group against one process on the host: data parallel, sharded, and both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from plugrl.testing.kit.rank_tools import Findings, device

WIDTH, ROWS, STEPS = 16, 8, 3
CLIP = 0.5
"""Low enough that every step is clipped."""

TOLERANCE = 1e-5
HALF_TOLERANCE = 2e-2


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH + 1), nn.Linear(3 * WIDTH + 1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` with the block's part added."""
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Regressor(nn.Module):
    """Two blocks and a head; sizes that two ranks cannot share out evenly among them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the predictions of the rows of ``x``."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass
class Course:
    """What training gave: loss and gradient norm (before clipping) of each step, and the parameters at the end."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_model(seed: int = 1) -> Regressor:
    """Return the model on the host, the same on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Regressor()


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of all ranks together, on the host."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, 5, generator=generator)


def make_optimizer(model: nn.Module) -> torch.optim.AdamW:
    """Return the optimizer; its epsilon keeps rounding of tiny gradients from deciding a step."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def share(rank: int, world: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's rows on its device."""
    inputs, targets = make_batch(step)
    return inputs.chunk(world)[rank].to(device()), targets.chunk(world)[rank].to(device())


# --------------------------------------------------------------------- one process on the host
def alone(world: int, dtype: torch.dtype | None = None) -> Course:
    """Train on the host. With ``dtype`` compute in it on copies of the parameters, and reduce gradients in fp32."""
    model = make_model()
    optimizer = make_optimizer(model)
    course = Course()
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = make_batch(step)
        losses = []
        for rows, wanted in zip(inputs.chunk(world), targets.chunk(world), strict=True):
            predicted = model(rows) if dtype is None else _in_dtype(model, rows, dtype)
            loss = (predicted.float() - wanted).square().mean()
            (loss / world).backward()
            losses.append(loss.item())
        course.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        course.losses.append(sum(losses) / world)
    course.parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return course


def _in_dtype(model: nn.Module, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    cast = {name: parameter.to(dtype) for name, parameter in model.named_parameters()}
    return functional_call(model, cast, (rows.to(dtype),))


# --------------------------------------------------------------------- on the ranks
def spread(rank: int, world: int, model: nn.Module) -> Course:
    """Train a model that is spread over the ranks already, on the device."""
    optimizer = make_optimizer(model)
    course = Course()
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = share(rank, world, step)
        loss = (model(inputs).float() - targets).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        course.norms.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        course.losses.append(float(total) / world)
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        course.parameters[name.removeprefix("module.")] = whole.detach().cpu()
    return course


def shard(model: nn.Module, mesh: DeviceMesh, averages: bool, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Apply fully_shard to each block and to the whole; without ``averages`` gradients are summed and divided."""
    policy = policy or MixedPrecisionPolicy()
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
        if not averages:
            module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return model


def data_parallel(rank: int, world: int) -> list[str]:
    """DistributedDataParallel gives the losses, norms and parameters of one process."""
    found = Findings()
    model = make_model().to(device())
    indices = None if device().type == "cpu" else [device().index]
    _compare(found, spread(rank, world, DistributedDataParallel(model, device_ids=indices)), alone(world), TOLERANCE)
    return found


def fully_sharded(rank: int, world: int, averages: bool) -> list[str]:
    """So does fully_shard, and each rank holds its part alone."""
    found = Findings()
    mesh = init_device_mesh(device().type, (world,))
    model = shard(make_model().to(device()), mesh, averages)
    _compare(found, spread(rank, world, model), alone(world), TOLERANCE)
    whole = sum(parameter.numel() for parameter in make_model().parameters())
    held = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    found.expect(held <= 0.6 * whole, f"rank {rank} holds {held} of {whole} parameters: they are not sharded")
    kinds = {p.to_local().device.type for p in model.parameters() if isinstance(p, DTensor)}
    found.expect(kinds == {device().type}, f"shards lie on {sorted(kinds)}, expected {device().type}")
    return found


def mixed_precision(rank: int, world: int, averages: bool) -> list[str]:
    """With parameters in bf16 and reductions in fp32, against the same arithmetic on the host."""
    found = Findings()
    mesh = init_device_mesh(device().type, (world,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(make_model().to(device()), mesh, averages, policy)
    seen: set[torch.dtype] = set()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda module, args, output: seen.update({args[0].dtype, output.dtype}))
    course = spread(rank, world, model)
    found.expect(seen == {torch.bfloat16}, f"linear layers computed in {seen}, expected torch.bfloat16 alone")
    masters = {parameter.dtype for parameter in model.parameters()}
    found.expect(masters == {torch.float32}, f"the parameters that are updated are {masters}, expected torch.float32")
    _compare(found, course, alone(world, torch.bfloat16), HALF_TOLERANCE)
    exact = alone(world).losses
    found.expect(course.losses != exact, "the losses are those of fp32 to the last bit: nothing was computed in bf16")
    return found


def hybrid(rank: int, world: int, averages: bool) -> list[str]:
    """Replicas of shards: one replica of as many shards as ranks, then the other way round."""
    found = Findings()
    expected = alone(world)
    for shape in ((1, world), (world, 1)):
        mesh = init_device_mesh(device().type, shape, mesh_dim_names=("replicate", "shard"))
        model = shard(make_model().to(device()), mesh, averages)
        _compare(found, spread(rank, world, model), expected, TOLERANCE, f"mesh {shape}: ")
    return found


def copies_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return all parameters whole on the host. Collective where they are sharded."""
    found = {}
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found[name] = copy.copy(whole.detach()).cpu().clone()
    return found


def _compare(found: Findings, got: Course, expected: Course, tolerance: float, prefix: str = "") -> None:
    for what in ("losses", "norms"):
        mine, theirs = torch.tensor(getattr(got, what)), torch.tensor(getattr(expected, what))
        found.expect_close(mine, theirs, tolerance, f"{prefix}{what} of {STEPS} steps")
    if got.parameters.keys() != expected.parameters.keys():
        found.append(f"{prefix}parameters are {sorted(got.parameters)}, expected {sorted(expected.parameters)}")
        return
    for name, parameter in expected.parameters.items():
        found.expect_close(got.parameters[name], parameter, 10 * tolerance, f"{prefix}{name} after {STEPS} steps")
