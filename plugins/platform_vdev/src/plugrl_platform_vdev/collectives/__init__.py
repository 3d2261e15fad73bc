"""The device's collectives: the process group ``vccl``, registered with torch.distributed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

BACKEND = "vccl"
DEVICE = "vdev"


def register() -> None:
    """Make ``init_process_group("vccl")`` known. Does nothing the second time."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=[DEVICE])


def _create(options: Any, backend_options: Any) -> dist.ProcessGroup:
    from plugrl_platform_vdev.collectives.group import VcclGroup

    return VcclGroup(
        options.store, options.group_rank, options.group_size, options.timeout, list(options.global_ranks_in_group)
    )
