"""Norm and clipping of gradients that may be sharded.

They work on the local part of each gradient: for sharded ones that saves one dispatch through DTensor per parameter,
and one all-reduce of a scalar gives the norm over the whole mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class LocalGradients:
    """This rank's part of every gradient, as plain tensors that share memory with the gradients.

    sharded: parts of gradients that other ranks hold the rest of. whole: gradients equal on all ranks.
    """

    sharded: list[torch.Tensor]
    whole: list[torch.Tensor]

    @property
    def all(self) -> list[torch.Tensor]:
        """Both kinds."""
        return self.sharded + self.whole


def local_gradients(parameters: Iterable[torch.nn.Parameter]) -> LocalGradients:
    """Sort the gradients that there are into sharded and whole ones."""
    found = LocalGradients([], [])
    for parameter in parameters:
        if isinstance(parameter.grad, DTensor):
            found.sharded.append(parameter.grad.to_local())
        elif parameter.grad is not None:
            found.whole.append(parameter.grad)
    return found


@torch.no_grad()
def global_norm(gradients: LocalGradients, shard_group: dist.ProcessGroup | None, device: torch.device) -> float:
    """2-norm of the whole gradient, in fp32. ``shard_group``: the ranks that together hold one copy of the shards."""
    square = _square(gradients.sharded, device)
    if shard_group is not None:
        dist.all_reduce(square, group=shard_group)
    if gradients.whole:
        square = square + _square(gradients.whole, device)
    return float(square.sqrt().item())


def _square(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    if not tensors:
        return torch.zeros((), device=device)
    # In its own dtype the norm of an fp16 gradient ends at 65504, and that of a bf16 one has three digits.
    low = [tensor for tensor in tensors if tensor.dtype.itemsize < 4]
    norms = [*_norms([tensor for tensor in tensors if tensor.dtype.itemsize >= 4], None), *_norms(low, torch.float32)]
    return torch.linalg.vector_norm(torch.stack([norm.to(device, torch.float32) for norm in norms])).square()


def _norms(tensors: list[torch.Tensor], dtype: torch.dtype | None) -> Sequence[torch.Tensor]:
    return torch._foreach_norm(tensors, 2, dtype) if tensors else ()


def factor_to_norm(norm: float, max_norm: float, unscale: float = 1.0) -> float:
    """What gradients are multiplied by: ``unscale``, which makes their norm ``norm``, and the cut to ``max_norm``.

    A ``max_norm`` of 0 cuts nothing.
    """
    return unscale * min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else unscale


@torch.no_grad()
def scale_to_norm(gradients: list[torch.Tensor], norm: float, max_norm: float, unscale: float = 1.0) -> None:
    """Multiply ``gradients`` in place by ``unscale``, which makes their norm ``norm``, and cut it to ``max_norm``."""
    factor = factor_to_norm(norm, max_norm, unscale)
    if factor != 1.0 and gradients:
        torch._foreach_mul_(gradients, factor)
