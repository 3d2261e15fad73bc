"""Sums in the place of averages, for collective libraries that have none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from plugrl_engine_fsdp.reduction import sum_instead_of_average


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """One rank, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_every_unit_sums_and_other_modules_are_left_alone(mesh: DeviceMesh) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()))
    assert sum_instead_of_average(model) == 0
    for unit in (model[1][0], model[1], model):
        fully_shard(unit, mesh=mesh)
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in (model[1][0], model)]
    assert [group.force_sum_reduction_for_comms for group in groups] == [False, False]
    assert sum_instead_of_average(model) == 3
    assert [group.force_sum_reduction_for_comms for group in groups] == [True, True]
    model(torch.ones(1, 2)).sum().backward()
    assert model[0].weight.grad is not None
