"""Moving modules between host and device so that a parameter stays the same object.

``module.to()`` does that on devices that torch knows itself. On those that a vendor's package adds it makes new
parameters instead: an optimizer then steps what nobody computes with, and tied weights are tied no longer.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def move_module(module: torch.nn.Module, device: torch.device) -> None:
    """Do what ``module.to(device)`` does, gradients included; parameters and buffers stay the same objects."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not tensor.is_meta and not isinstance(tensor, DTensor) and tensor.device.type != device.type:
            gradient = tensor.grad
            tensor.grad = None
            replace_tensor(tensor, tensor.detach().to(device))
            tensor.grad = None if gradient is None else gradient.to(device)
    # torch itself keeps the objects of sharded parameters, and a module may have more to move than tensors.
    module.to(device)


@torch.no_grad()
def replace_tensor(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give ``tensor`` the memory of ``value``; who holds it, a tie or an optimizer, still holds it.

    Tensors of different kinds, such as those of the host and of a device that torch does not know itself, or those
    without memory, cannot take over each other's memory: there the two change places.
    """
    if not tensor.is_meta and torch._has_compatible_shallow_copy_type(tensor, value):
        tensor.data = value
        return
    if isinstance(tensor, torch.nn.Parameter):
        value = torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
    torch.utils.swap_tensors(tensor, value)
