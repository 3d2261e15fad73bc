"""Reading the index of shards, which torch stores as a pickle, without letting it run or import anything."""

from __future__ import annotations

import pathlib
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata

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
            ImportError, RuntimeError) as error:  # fmt: skip
        raise CheckpointError(f"{path} is no index of shards: {error}.") from error
    if not isinstance(index, Metadata):
        raise CheckpointError(f"{path} is no index of shards: it holds a {type(index).__name__}.")
    return index


def _load(stream: BinaryIO) -> Any:
    return _IndexUnpickler(stream).load()
