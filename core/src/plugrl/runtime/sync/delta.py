"""The difference of two tensors, exactly: which elements have other bits, and the new ones.

Elements are compared as whole numbers, so that 0.0 and -0.0 differ and a NaN equals itself. Positions are written as
gaps between neighbours, in the smallest type that holds the largest gap of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from plugrl.errors import WeightSyncError

_VIEWS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_GAPS = (np.uint8, np.uint16, np.uint32, np.uint64)
_WEIGHT_PERIOD = 1_000_003

DENSE, GAPS, VALUES = "d:", "g", "v:"
"""What stands before a tensor's name on the way: all of it; its gaps, with their bytes and a colon; its new values."""


def elements(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's elements as whole numbers, a view [n]."""
    return tensor.reshape(-1).view(_VIEWS[tensor.dtype.itemsize])


@dataclass(frozen=True)
class Delta:
    """Changed elements. positions: int64 [k], rising. values: whole numbers [k]. before: :func:`digest` of the old."""

    positions: torch.Tensor
    values: torch.Tensor
    before: int


def difference(old: torch.Tensor, new: torch.Tensor) -> Delta:
    """Compare two tensors of one dtype and shape."""
    old_elements, new_elements = elements(old), elements(new)
    positions = _differing(old_elements, new_elements)
    return Delta(positions, new_elements[positions], digest(old_elements[positions], positions))


def _differing(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return where two vectors of whole numbers differ; words of eight bytes are compared first, as few differ."""
    old, new = _aligned(old), _aligned(new)
    width = 8 // old.element_size()
    whole = old.numel() // width * width
    words = (old[:whole].view(torch.int64) != new[:whole].view(torch.int64)).nonzero().reshape(-1)
    inside = (old[:whole].view(-1, width)[words] != new[:whole].view(-1, width)[words]).nonzero()
    rest = (old[whole:] != new[whole:]).nonzero().reshape(-1) + whole
    return torch.cat([words[inside[:, 0]] * width + inside[:, 1], rest])


def _aligned(vector: torch.Tensor) -> torch.Tensor:
    """Return the vector, or a copy where it begins in the middle of a word, as a part of a larger tensor may."""
    return vector if vector.storage_offset() * vector.element_size() % 8 == 0 else vector.clone()


def apply(target: torch.Tensor, delta: Delta) -> None:
    """Write the changed elements into a contiguous tensor."""
    elements(target)[delta.positions] = delta.values


def digest(values: torch.Tensor, positions: torch.Tensor) -> int:
    """Return a number that another value, or the same at another place, all but surely changes."""
    weights = positions.remainder(_WEIGHT_PERIOD) * 2 + 1
    return int(((values.to(torch.int64) + 1) * weights).sum())


def encode(name: str, delta: Delta) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that say what changed in ``name``; none when nothing did."""
    if not delta.positions.numel():
        return
    positions = delta.positions.numpy()
    gaps = np.diff(positions, prepend=0)
    narrow = next(kind for kind in _GAPS if gaps.max() <= np.iinfo(kind).max)
    yield f"{GAPS}{np.dtype(narrow).itemsize}:{name}", torch.from_numpy(gaps.astype(narrow).view(np.uint8))
    yield f"{VALUES}{name}", delta.values


def encoded_bytes(delta: Delta) -> int:
    """Return what :func:`encode` needs at most, in bytes: with gaps of four."""
    return delta.positions.numel() * (4 + delta.values.element_size())


def decode(parts: dict[str, torch.Tensor], before: dict[str, int]) -> dict[str, Delta]:
    """Put together what :func:`encode` made of several tensors. Raises WeightSyncError when a part is missing."""
    found = {}
    for key, data in parts.items():
        if key.startswith((DENSE, VALUES)):
            continue
        head, _, name = key.partition(":")
        values = parts.get(f"{VALUES}{name}")
        gaps = data.numpy().view(f"u{head.removeprefix(GAPS)}").astype(np.int64)
        if values is None or values.numel() != gaps.size or name not in before:
            raise WeightSyncError(f"The changes of {name} are not whole.")
        found[name] = Delta(torch.from_numpy(np.cumsum(gaps)), values, before[name])
    return found
