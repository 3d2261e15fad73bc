"""Device tensors as the host sees them: what a collective reads, and where its result goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass
class HostCopy:
    """A tensor and the host memory that stands for it in a collective; the same tensor where it lies there already."""

    tensor: torch.Tensor
    host: torch.Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, tensor: torch.Tensor) -> HostCopy:
        """Copy what ``tensor`` holds now, so that the caller may reuse its memory at once."""
        if _is_usable(tensor):
            return cls(tensor, tensor)
        return cls(tensor, tensor.detach().to("cpu", copy=True).contiguous())

    @classmethod
    def for_result(cls, tensor: torch.Tensor) -> HostCopy:
        """Room for a result, without reading ``tensor``."""
        if _is_usable(tensor):
            return cls(tensor, tensor)
        return cls(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))

    @torch.no_grad()
    def land(self) -> None:
        """Write the host's values to the tensor; autograd sees no change of version, as with any collective."""
        if self.host is not self.tensor:
            self.tensor.data.copy_(self.host)


def read(tensors: Sequence[torch.Tensor]) -> list[HostCopy]:
    """Copies of all ``tensors``."""
    return [HostCopy.of(tensor) for tensor in tensors]


def room(tensors: Sequence[torch.Tensor]) -> list[HostCopy]:
    """Room for results in all ``tensors``."""
    return [HostCopy.for_result(tensor) for tensor in tensors]


def hosts(copies: Sequence[HostCopy]) -> list[torch.Tensor]:
    """The host memory of each."""
    return [copy.host for copy in copies]


def _is_usable(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()
