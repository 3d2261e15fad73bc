"""Sharded checkpoints by torch.distributed.checkpoint on ranks of a process group: written, read, read elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

from plugrl.testing.kit.rank_tools import Findings, device
from plugrl.testing.kit.rank_training import copies_of, make_model, make_optimizer, shard, share


def write_and_read(rank: int, world: int, folder: str, averages: bool) -> list[str]:
    """A model and its optimizer go on from a checkpoint as if there had been none; one process reads it too."""
    found = Findings()
    model, optimizer = _trained(rank, world, averages, seed=1)
    dcp.save(_state(model, optimizer), checkpoint_id=folder)
    written = copies_of(model)
    other, its_optimizer = _trained(rank, world, averages, seed=2)
    _load(other, its_optimizer, folder)
    for name, whole in copies_of(other).items():
        found.expect_equal(whole, written[name], f"{name} as it was read")
    _step(model, optimizer, rank, world, 1)
    _step(other, its_optimizer, rank, world, 1)
    expected = copies_of(model)
    for name, whole in copies_of(other).items():
        found.expect_equal(whole, expected[name], f"{name} one step after reading")
    if rank == 0:
        _read_alone(found, folder, written)
    return found


def write_in_background(rank: int, world: int, folder: str, averages: bool) -> list[str]:
    """What is written is the state at the call, though training goes on meanwhile."""
    found = Findings()
    model, optimizer = _trained(rank, world, averages, seed=1)
    at_the_call = copies_of(model)
    future: Any = dcp.async_save(_state(model, optimizer), checkpoint_id=folder, process_group=_group_of_its_own())
    _step(model, optimizer, rank, world, 1)
    getattr(future, "upload_completion", future).result(timeout=60)
    other, its_optimizer = _trained(rank, world, averages, seed=2)
    _load(other, its_optimizer, folder)
    for name, whole in copies_of(other).items():
        found.expect_equal(whole, at_the_call[name], f"{name} as it was written in the background")
    return found


def broadcast_whole(rank: int, world: int, averages: bool) -> list[str]:
    """A whole state that rank 0 alone has reaches the shards of all."""
    found = Findings()
    model, optimizer = _trained(rank, world, averages, seed=2)
    whole = make_model(1).state_dict() if rank == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    dcp.state_dict.set_model_state_dict(model, whole, options=options)
    expected = make_model(1).state_dict()
    for name, got in copies_of(model).items():
        found.expect_equal(got, expected[name], f"{name} as rank 0 sent it")
    return found


def _trained(rank: int, world: int, averages: bool, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = shard(make_model(seed).to(device()), init_device_mesh(device().type, (world,)), averages)
    optimizer = make_optimizer(model)
    _step(model, optimizer, rank, world, 0)
    return model, optimizer


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, world: int, step: int) -> None:
    optimizer.zero_grad()
    inputs, targets = share(rank, world, step)
    (model(inputs) - targets).square().mean().backward()
    optimizer.step()


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def _load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def _read_alone(found: Findings, folder: str, written: dict[str, torch.Tensor]) -> None:
    """Read the weights into a model on the host, without a group."""
    state = {"model": make_model(3).state_dict()}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    for name, whole in state["model"].items():
        found.expect_equal(whole, written[name], f"{name} as one process on the host read it")
    found.expect(any(Path(folder).glob("*.distcp")), "no file with shards was written")


def _group_of_its_own() -> dist.ProcessGroup:
    """Return a group for host tensors: on that of the training, threads would take each other's messages."""
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    if torch.device("cpu") in group._device_types:
        return group
    other = dist.new_group(backend="gloo")
    assert isinstance(other, dist.ProcessGroup)
    return other
