"""Writing the safetensors format one tensor at a time: a length, a JSON header, then the bytes of the tensors.

The format is that of https://github.com/huggingface/safetensors; its own writer wants all tensors at once and tells no
hash.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from plugrl.checkpoints.hashed_file import HashedFile
from plugrl.checkpoints.manifest import FileRecord
from plugrl.errors import CheckpointError

_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
DTYPES = {code: dtype for dtype, code in _CODES.items()}
"""torch's dtype for each code of the format."""


@dataclass(frozen=True)
class TensorSpec:
    """What must be known of a tensor before it is written."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a tensor; of the whole tensor where ``tensor`` is sharded."""
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsWriter:
    """Writes the tensors named in ``specs``, in the order of :attr:`names`, each as soon as it is there."""

    def __init__(self, path: Path, specs: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> None:
        self.names = self.order(specs)
        self.specs = dict(specs)
        self.file = HashedFile(path)
        self._next = 0
        self.file.write(self._header(metadata))

    @staticmethod
    def order(specs: Mapping[str, TensorSpec]) -> list[str]:
        """The order in which tensors are written: wide types first, so that each is aligned to its own type."""
        return sorted(specs, key=lambda name: -specs[name].dtype.itemsize)

    def _header(self, metadata: Mapping[str, str] | None) -> bytes:
        entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        for name in self.names:
            spec = self.specs[name]
            if spec.dtype not in _CODES:
                raise CheckpointError(f"{name}: safetensors has no type {spec.dtype}.")
            end = offset + spec.nbytes
            entries[name] = {"dtype": _CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, end]}
            offset = end
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write the next tensor, from any device; it must not change before the file is closed.

        ValueError when it is not the next, or another than announced.
        """
        if self._next >= len(self.names) or name != self.names[self._next]:
            raise ValueError(f"{self.file.path.name}: {name} is not the next tensor to write")
        if TensorSpec.of(tensor) != self.specs[name]:
            raise ValueError(f"{name} is {TensorSpec.of(tensor)}, announced was {self.specs[name]}")
        self._next += 1
        self.file.write_stable(bytes_of(tensor))

    def close(self) -> FileRecord:
        """Sync the file; returns its size and hash. ValueError when tensors are missing."""
        if self._next < len(self.names):
            raise ValueError(f"{self.file.path.name} lacks {self.names[self._next]}")
        return self.file.close()

    def discard(self) -> None:
        """Give up: close and remove the file."""
        self.file.discard()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in order, without a copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")
