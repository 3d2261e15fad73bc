"""Reading the index of shards, which torch stores as a pickle, without letting it run or import anything."""

from __future__ import annotations

import math
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from plugrl.errors import CheckpointError

_METADATA_CLASSES = (
    "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata", "ChunkStorageMetadata",
    "BytesStorageMetadata", "_MEM_FORMAT_ENCODING",
)  # fmt: skip

_ALLOWED: dict[tuple[str, str], Any] = {
    **{(dcp_metadata.__name__, name): getattr(dcp_metadata, name) for name in _METADATA_CLASSES},
    (_StorageInfo.__module__, _StorageInfo.__name__): _StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("pathlib", "PosixPath"): pathlib.PurePosixPath,
    ("pathlib", "WindowsPath"): pathlib.PureWindowsPath,
}

_MOST = 1 << 62
"""More than any file or tensor has."""


class _IndexUnpickler(pickle.Unpickler):
    """Knows the classes of an index and torch's types, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong into an index of shards")
        return found


def read_index(path: Path) -> Metadata:
    """Read the index of a folder of shards. Raises CheckpointError: it is missing, damaged or holds other things."""
    try:
        with open(path, "rb") as stream:
            index = _load(stream)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError,
            ImportError, RuntimeError, OverflowError, MemoryError) as error:  # fmt: skip
        raise CheckpointError(f"{path} is no index of shards: {error}.") from error
    if not isinstance(index, Metadata):
        raise CheckpointError(f"{path} is no index of shards: it holds a {type(index).__name__}.")
    try:
        for name, entry in index.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                _check_entry(name, entry, index.storage_data)
    except (TypeError, AttributeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is no index of shards: {error}.") from error
    return index


def _check_entry(name: str, entry: TensorStorageMetadata, storage: Mapping[MetadataIndex, _StorageInfo]) -> None:
    """Check that an entry means what its types say, so that nobody makes room for a tensor that is not there.

    Raises ValueError, and what a value of another type raises.
    """
    dtype, shape = entry.properties.dtype, tuple(entry.size)
    if not isinstance(dtype, torch.dtype) or not _are_counts(shape):
        raise ValueError(f"{name} has no type or no shape")
    stored = 0
    for chunk in entry.chunks:
        offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        if not (_are_counts(offsets) and _are_counts(sizes)) or any(
            start + size > whole for start, size, whole in zip(offsets, sizes, shape, strict=True)
        ):
            raise ValueError(f"{name} has a block that does not lie within it")
        where = storage[MetadataIndex(name, chunk.offsets)]
        if not (isinstance(where, _StorageInfo) and _are_counts((where.offset, where.length))):
            raise ValueError(f"the index does not say where a block of {name} lies")
        elements = math.prod(sizes)
        if elements * dtype.itemsize > where.length:
            raise ValueError(f"a block of {name} takes more than the {where.length} bytes that are stored of it")
        stored += elements
    if stored != math.prod(shape):
        raise ValueError(f"{stored} of {math.prod(shape)} elements of {name} are stored")


def _are_counts(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) and 0 <= value < _MOST for value in values)


def _load(stream: BinaryIO) -> Any:
    return _IndexUnpickler(stream).load()
