"""An image: all weights of one version in one piece of shared memory, with a seal that says whether they are whole."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from plugrl.errors import WeightSyncError
from plugrl.runtime.sync.memory import PrivateMap, anonymous_memory, map_shared
from plugrl.runtime.sync.source import TensorSpec

_ALIGNMENT = 64
_HEAD = 4096
"""Bytes before the first tensor, in which the seal stands: a page of its own."""
_MAGIC = 0x504C5247
_OPEN, _SEALED = 0, 1


class Layout:
    """Where each tensor stands in an image."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = tuple(specs)
        self.offsets: dict[str, int] = {}
        position = _HEAD
        for spec in self.specs:
            if spec.name in self.offsets:
                raise WeightSyncError(f"Tensor {spec.name!r} was sent twice.")
            self.offsets[spec.name] = position
            position += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.size = position
        self.checksum = zlib.crc32(repr(self.specs).encode())

    def to_list(self) -> list[Any]:
        """Return plain values."""
        return [[spec.name, spec.dtype, list(spec.shape)] for spec in self.specs]

    @classmethod
    def from_list(cls, values: list[Any]) -> Layout:
        """Rebuild what :meth:`to_list` gave."""
        return cls([TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in values])

    def views(self, memory: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors in the memory of an image."""
        for spec in self.specs:
            start = self.offsets[spec.name]
            data = memory[start : start + spec.nbytes]
            yield spec.name, data.view(spec.torch_dtype).reshape(spec.shape)


class ImageWriter:
    """The sender's side of an image."""

    def __init__(self, number: int, layout: Layout) -> None:
        self.number = number
        self.layout = layout
        self.version = -1
        self.descriptor = anonymous_memory(layout.size)
        self._memory = map_shared(self.descriptor, layout.size)
        self.tensors = dict(layout.views(self._memory))

    def open(self) -> None:
        """Break the seal: from here on the image is of no version."""
        self._seal(_OPEN)

    def seal(self, version: int) -> None:
        """Say that all tensors of ``version`` are in it."""
        self.version = version
        self._seal(_SEALED)

    def close(self) -> None:
        """Let the memory go; receivers keep theirs as long as they map it."""
        self.tensors = {}
        del self._memory
        os.close(self.descriptor)

    def _seal(self, state: int) -> None:
        _words(self._memory)[:] = torch.tensor([_MAGIC, state, self.version, self.layout.checksum])


class ImageReader:
    """A receiver's side of an image; takes over the descriptor.

    The image stays mapped from version to version: to map it anew costs more than the messages of a transfer, and the
    page faults of the first use as much as a copy.
    """

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self.layout = layout
        self._descriptor = descriptor
        self._map: PrivateMap | None = None

    def refresh(self) -> None:
        """Forget what this process has written to the image: a slip of one version must not outlast it.

        For an image that no model refers to, while the sender is still writing.
        """
        if self._map is not None and not self._map.forget_writes():
            self._map = None

    def tensors(self, version: int) -> dict[str, torch.Tensor]:
        """Return the tensors of a refreshed image.

        Raises WeightSyncError unless the image is sealed as ``version`` and laid out as was said.
        """
        if self._map is None:
            self._map = PrivateMap(self._descriptor, self.layout.size)
        memory = self._map.memory
        found = _words(memory).tolist()
        if found != [_MAGIC, _SEALED, version, self.layout.checksum]:
            raise WeightSyncError(f"The image of the weights is not one of version {version}: its seal is {found}.")
        return dict(self.layout.views(memory))

    def close(self) -> None:
        """Close the descriptor; what is mapped stays as long as a tensor refers to it."""
        self._map = None
        os.close(self._descriptor)


def _words(memory: torch.Tensor) -> torch.Tensor:
    return memory[:32].view(torch.int64)
