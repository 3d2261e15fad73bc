"""Averages of gradients where the collective library cannot average: a sum and a division."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import FSDPModule


def sum_instead_of_average(module: torch.nn.Module) -> int:
    """Make every FSDP2 unit in ``module`` reduce by sums, and return how many there are.

    For an engine's ``initialize``, after its parent's. Each unit has its own setting: the root's reaches no child.
    FSDP1 and DDP need none of it: they divide by themselves.
    """
    units = [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
    for unit in units:
        unit.set_force_sum_reduction_for_comms(True)
    return len(units)
