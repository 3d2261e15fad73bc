"""Reading parts of stored tensors: the same calls for a safetensors file and for the shards of a distributed run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.tensor import DTensor

from plugrl.checkpoints.safetensors_file import DTYPES, TensorSpec
from plugrl.errors import CheckpointError

Region = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a block of a tensor."""


class TensorSource(ABC):
    """Named tensors at rest. ``specs``: type and whole shape of each, known before anything is read."""

    where: str
    specs: Mapping[str, TensorSpec]

    @abstractmethod
    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """Return the block of ``sizes`` at ``offsets``, on the CPU; it may be a view of the file, not to be changed."""

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole tensor."""
        shape = self.specs[name].shape
        return self.read(name, (0,) * len(shape), shape)

    @abstractmethod
    def close(self) -> None:
        """Close the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SafetensorsSource(TensorSource):
    """One or several safetensors files, mapped into memory: only what is asked for is read."""

    def __init__(self, files: Iterable[Path]) -> None:
        paths = sorted(files)
        self.where = str(paths[0].parent if len(paths) > 1 else paths[0])
        self.metadata: dict[str, str] = {}
        self._handles: dict[str, safe_open] = {}
        self._stack = ExitStack()
        specs: dict[str, TensorSpec] = {}
        for path in paths:
            if not path.is_file():
                raise CheckpointError(f"{path} is missing.")
            try:
                handle = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
                self.metadata |= handle.metadata() or {}
                for name in handle.keys():  # noqa: SIM118 (no mapping)
                    view = handle.get_slice(name)
                    specs[name] = TensorSpec(_dtype(path, view.get_dtype()), tuple(view.get_shape()))
                    self._handles[name] = handle
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}.") from error
        self.specs = specs

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """As the contract says; a view of the file where the block is contiguous."""
        try:
            if tuple(sizes) == self.specs[name].shape:
                return self._handles[name].get_tensor(name)
            region = tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))
            return self._handles[name].get_slice(name)[region]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.where}: {name} cannot be read: {error}.") from error

    def close(self) -> None:
        """Unmap the files."""
        self._stack.close()


def _dtype(path: Path, code: str) -> torch.dtype:
    if code not in DTYPES:
        raise CheckpointError(f"{path} holds tensors of type {code}, which is unknown here.")
    return DTYPES[code]


def regions_of(target: torch.Tensor) -> Iterator[tuple[Region, torch.Tensor]]:
    """The blocks of the whole tensor that this process holds of ``target``, each with the memory it lies in."""
    local = target.detach()
    if not isinstance(local, DTensor):
        yield ((0,) * local.dim(), tuple(local.shape)), local
        return
    memory: torch.Tensor = local.to_local()
    found = local.__create_chunk_list__()
    if len(found) != 1:
        raise CheckpointError(f"a tensor in {len(found)} blocks per process is not supported.")
    if memory.numel() or not local.numel():
        yield (tuple(found[0].offsets), tuple(found[0].sizes)), memory


@torch.no_grad()
def read_into(source: TensorSource, name: str, target: torch.Tensor) -> None:
    """Copy this process's part of ``name`` into ``target``, a tensor or a sharded one; no other process is involved."""
    for (offsets, sizes), memory in regions_of(target):
        memory.copy_(source.read(name, offsets, sizes))


def compare(where: str, stored: Mapping[str, TensorSpec], expected: Mapping[str, Sequence[int]]) -> None:
    """Check names and shapes before anything is read. Raises CheckpointError listing what does not fit."""
    missing, unexpected = sorted(expected.keys() - stored.keys()), sorted(stored.keys() - expected.keys())
    shapes = [
        f"{name} has shape {list(stored[name].shape)}, expected {list(expected[name])}"
        for name in sorted(stored.keys() & expected.keys())
        if stored[name].shape != tuple(expected[name])
    ]
    problems = [
        f"{len(names)} names {what} ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
        for what, names in (("missing", missing), ("unexpected", unexpected))
        if names
    ]
    problems += shapes[:5] + ([f"{len(shapes) - 5} more shapes differ"] if len(shapes) > 5 else [])
    if problems:
        raise CheckpointError(f"{where} does not fit the model: {'; '.join(problems)}.")
