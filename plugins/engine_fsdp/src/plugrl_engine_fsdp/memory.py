"""Moving optimizer state between the device and the host."""

from __future__ import annotations

import torch

STEP_SLOT = "step"
"""The slot of the step counter, which lies where the optimizer's kernel wants it."""


def move_optimizer_state(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Move the moments of every parameter to ``device``; step counters are scalars and stay."""
    for state in optimizer.state.values():
        for slot, value in state.items():
            if slot != STEP_SLOT and isinstance(value, torch.Tensor) and value.device.type != device.type:
                # Towards the host a copy that nobody waits for would be read there before it has arrived.
                state[slot] = value.to(device, non_blocking=device.type != "cpu")
