"""Tensors as arrays, which processes of a node share without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_AS: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.int16}
"""Types that NumPy lacks, and those of the same size that stand for them."""


@dataclass(frozen=True)
class PackedTensors:
    """Tensors by name, as arrays with the name of torch's type."""

    arrays: Mapping[str, tuple[NDArray[np.generic], str]]

    @classmethod
    def pack(cls, tensors: Mapping[str, Tensor]) -> PackedTensors:
        """Share memory with tensors of the host; others are copied."""
        found = {}
        for name, tensor in tensors.items():
            value = tensor.detach().cpu().contiguous()
            stand_in = _AS.get(value.dtype)
            kind = str(value.dtype).removeprefix("torch.")
            found[name] = ((value.view(stand_in) if stand_in else value).numpy(), kind)
        return cls(found)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return rows of every tensor, copied."""
        return {name: _tensor(array[rows], kind) for name, (array, kind) in self.arrays.items()}

    @staticmethod
    def join(parts: Sequence[PackedTensors], dim: int) -> dict[str, Tensor]:
        """Return the tensors of all parts put together along ``dim``, copied."""
        names = parts[0].arrays
        return {
            name: _tensor(np.concatenate([part.arrays[name][0] for part in parts], dim), names[name][1])
            for name in names
        }


def _tensor(array: NDArray[np.generic], kind: str) -> Tensor:
    tensor = torch.from_numpy(array)
    dtype: torch.dtype = getattr(torch, kind)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
