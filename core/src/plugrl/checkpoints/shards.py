"""Shards as torch's distributed checkpoints have them: ``__<rank>_0.distcp`` of each rank, and the index ``.metadata``.

torch's own readers and tools read what is written here, and the other way round. Each rank writes its file by itself;
then one rank writes the index from what all of them tell. Nothing here needs a process group.
"""

from __future__ import annotations

import io
import math
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from plugrl.checkpoints.hashed_file import HashedFile
from plugrl.checkpoints.layout import SHARD_INDEX
from plugrl.checkpoints.manifest import FileRecord
from plugrl.checkpoints.safetensors_file import DTYPES, TensorSpec, bytes_of
from plugrl.checkpoints.source import TensorSource
from plugrl.checkpoints.unpickling import read_index
from plugrl.errors import CheckpointError

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_LARGE = 1 << 20
"""Bytes from which a piece of an archive can only be the tensor's own."""
_READ_FAULTS = (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError,
                pickle.UnpicklingError)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Block:
    """One stored block: of which tensor (``shape`` is the whole one), which part, and where it lies."""

    name: str
    dtype: str
    shape: list[int]
    offsets: list[int]
    sizes: list[int]
    file: str
    start: int
    length: int


class ShardWriter:
    """Writes the blocks of one rank into one file of ``folder``."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.file = HashedFile(folder / f"__{rank}_0.distcp")
        self.blocks: list[Block] = []

    def add(self, name: str, block: torch.Tensor, spec: TensorSpec, offsets: Sequence[int]) -> None:
        """Append a block that starts at ``offsets`` of the tensor ``name``, which as a whole is as ``spec`` says.

        The block must not change before the file is closed.
        """
        value = block.detach().cpu().contiguous()
        if value.untyped_storage().nbytes() != value.nbytes:
            value = value.clone()  # or torch would store all that the memory holds
        start = self.file.size
        with _without_checksums():
            torch.save(value, cast(IO[bytes], _Archive(self.file, value)))
        self.blocks.append(
            Block(
                name=name,
                dtype=_CODES[spec.dtype],
                shape=list(spec.shape),
                offsets=list(offsets),
                sizes=list(value.shape),
                file=self.file.path.name,
                start=start,
                length=self.file.size - start,
            )
        )

    def close(self) -> FileRecord:
        """Sync the file; returns its size and hash."""
        return self.file.close()

    def discard(self) -> None:
        """Give up: close and remove the file."""
        self.file.discard()

    def notes(self) -> list[dict[str, Any]]:
        """What the writer of the index must know of this rank, as plain values."""
        return [asdict(block) for block in self.blocks]


@contextmanager
def _without_checksums() -> Iterator[None]:
    """Spare torch the checksums inside its archives, which its readers skip: the whole file has a better one."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


class _Archive:
    """The stream that torch writes an archive of one tensor into.

    torch frees its own small pieces after each call; the piece with the tensor's bytes is the tensor's memory.
    """

    def __init__(self, file: HashedFile, tensor: torch.Tensor) -> None:
        self._file = file
        self._bytes = bytes_of(tensor)

    def write(self, data: memoryview) -> int:
        """Append a piece of the archive."""
        if len(data) == len(self._bytes) and len(data) >= _LARGE:
            self._file.write_stable(self._bytes)
        else:
            self._file.write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: the file knows when."""


def write_index(
    folder: Path, notes: Iterable[Iterable[Mapping[str, Any]]], paths: Mapping[str, tuple[str, ...]]
) -> FileRecord:
    """Write the index of what all ranks noted. ``paths``: the nested keys that each stored name stands for.

    Raises CheckpointError when the blocks of a tensor do not make the whole of it.
    """
    tensors: dict[str, TensorStorageMetadata] = {}
    storage: dict[MetadataIndex, _StorageInfo] = {}
    for block in (Block(**note) for rank in notes for note in rank):
        properties = TensorProperties(dtype=DTYPES[block.dtype])
        entry = tensors.setdefault(block.name, TensorStorageMetadata(properties, torch.Size(block.shape), []))
        chunk = ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.sizes))
        index = MetadataIndex(block.name, chunk.offsets, len(entry.chunks))
        storage[index] = _StorageInfo(block.file, block.start, block.length)
        entry.chunks.append(chunk)
    for name, entry in tensors.items():
        stored = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if stored != math.prod(entry.size):
            raise CheckpointError(f"{folder}: {stored} of {math.prod(entry.size)} elements of {name} were stored.")
    planner = {name: paths.get(name, (name,)) for name in tensors}
    metadata = Metadata(dict(tensors), planner_data=planner, storage_data=storage, storage_meta=StorageMeta())
    with HashedFile(folder / SHARD_INDEX) as file:
        file.write(pickle.dumps(metadata))
    return file.close()


class ShardSource(TensorSource):
    """The tensors of a folder of shards whose stored names begin with ``prefix``, which is left out of their names.

    Byte items, which hold pickles of plain values, are listed in ``byte_names`` and read by :meth:`read_bytes`.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.where = str(folder)
        self._folder = folder
        self._prefix = prefix
        metadata = read_index(folder / SHARD_INDEX)
        self._storage: Mapping[MetadataIndex, _StorageInfo] = metadata.storage_data or {}
        self._entries: dict[str, TensorStorageMetadata] = {}
        self.byte_names: list[str] = []
        for name, entry in metadata.state_dict_metadata.items():
            if not name.startswith(prefix):
                continue
            if isinstance(entry, TensorStorageMetadata):
                self._entries[name.removeprefix(prefix)] = entry
            else:
                self.byte_names.append(name.removeprefix(prefix))
        self.specs = {
            name: TensorSpec(entry.properties.dtype, tuple(entry.size)) for name, entry in self._entries.items()
        }
        self._latest: tuple[MetadataIndex, torch.Tensor] | None = None
        self._lock = threading.Lock()

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """As the contract says; blocks are put together where the wanted one lies in several."""
        entry = self._entries[name]
        result: torch.Tensor | None = None
        filled = 0
        for chunk in entry.chunks:
            inside = _overlap(offsets, sizes, chunk.offsets, chunk.sizes)
            if inside is None:
                continue
            stored = self._load(MetadataIndex(self._prefix + name, chunk.offsets), chunk.sizes, entry.properties.dtype)
            ours, theirs = inside
            if all(part.stop - part.start == size for part, size in zip(ours, sizes, strict=True)):
                return stored[theirs]
            if result is None:
                result = torch.empty(tuple(sizes), dtype=entry.properties.dtype)
            result[ours] = stored[theirs]
            filled += result[ours].numel()
        if result is None and math.prod(sizes) == 0:
            return torch.empty(tuple(sizes), dtype=entry.properties.dtype)
        if result is None or filled != result.numel():
            raise CheckpointError(f"{self.where}: the shards hold only a part of {name}.")
        return result

    def read_bytes(self, name: str) -> Any:
        """Return a byte item; only plain values and tensors can be in it."""
        return self._unpack(MetadataIndex(self._prefix + name))

    def close(self) -> None:
        """Forget the block that was read last."""
        self._latest = None

    def _load(self, index: MetadataIndex, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        with self._lock:
            if self._latest is None or self._latest[0] != index:
                value = self._unpack(index)
                if not isinstance(value, torch.Tensor) or (tuple(value.shape), value.dtype) != (tuple(sizes), dtype):
                    raise CheckpointError(f"{self.where}: the block of {index.fqn} is not what the index says.")
                self._latest = (index, value.detach())
            return self._latest[1]

    def _unpack(self, index: MetadataIndex) -> Any:
        info = self._storage.get(index)
        if info is None:
            raise CheckpointError(f"{self.where}: the index does not say where {index.fqn} lies.")
        if info.transform_descriptors:
            raise CheckpointError(f"{self.where}: {index.fqn} is stored as {info.transform_descriptors}, unknown here.")
        path = self._folder / str(info.relative_path)
        if path.resolve().parent != self._folder.resolve():
            raise CheckpointError(f"{self.where}: the index points outside, to {info.relative_path}.")
        try:
            with open(path, "rb") as stream:
                stream.seek(info.offset)
                data = stream.read(info.length)
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except _READ_FAULTS as error:
            raise CheckpointError(f"{path} cannot be read: {error}.") from error


def _overlap(
    offsets: Sequence[int], sizes: Sequence[int], other_offsets: Sequence[int], other_sizes: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Where two blocks overlap, in the coordinates of each; None when they do not."""
    ours, theirs = [], []
    for start, size, other, length in zip(offsets, sizes, other_offsets, other_sizes, strict=True):
        first, last = max(start, other), min(start + size, other + length)
        if first >= last:
            return None
        ours.append(slice(first - start, last - start))
        theirs.append(slice(first - other, last - other))
    return tuple(ours), tuple(theirs)
