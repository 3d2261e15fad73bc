"""The files of a checkpoint's weights: one safetensors file or several with an index, read and written alike.

What was read can be written again byte for byte: the header of each file is kept, and so is the index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from plugrl.checkpoints.layout import MODEL_SHARDS
from plugrl.checkpoints.safetensors_file import DTYPES
from plugrl.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 4 * 1024**3
"""Weights that were in no files before are cut into files of at most this size."""

_GAMMA = re.compile(r"(vision_backbone\..*\.ls\d+)\.gamma$")
_ROTARY = re.compile(r".*\.rotary_emb\.inv_freq$")


def own_name(stored: str) -> str | None:
    """Return what the model calls a stored tensor; None for one that it computes itself.

    The factor of a layer scale has another name in files of timm.
    """
    return None if _ROTARY.match(stored) else _GAMMA.sub(r"\1.scale_factor", stored)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a header describes it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Shard:
    """One file: its name, its header with the length in front, its tensors in the order of their bytes."""

    file: str
    header: bytes
    tensors: tuple[StoredTensor, ...]

    def own_name(self, stored: str) -> str | None:
        """Return what the model calls a stored tensor; None for one that it computes itself."""
        return own_name(stored)

    @property
    def is_indexed(self) -> bool:
        """Whether the index lists the tensors."""
        return True


@dataclass(frozen=True)
class WeightFiles:
    """The files in ``folder``; ``index`` is the content of the index, None for a single file."""

    folder: Path
    shards: tuple[Shard, ...]
    index: bytes | None = None

    @classmethod
    def read(cls, folder: Path, key: str = "model.path") -> WeightFiles:
        """Read index and headers. Raises CheckpointError for files that are missing, cut off or no safetensors."""
        index = folder / INDEX
        if (folder / SINGLE).is_file():
            return cls(folder, (read_shard(folder / SINGLE),))
        if not index.is_file():
            shards = folder / MODEL_SHARDS
            hint = f" Make one file of {shards.name}/: plugrl checkpoint convert {folder}" if shards.is_dir() else ""
            raise CheckpointError(f"{key}: {folder} has no weights, neither {SINGLE} nor {INDEX}.{hint}")
        content = index.read_bytes()
        try:
            names = sorted(set(json.loads(content)["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{key}: {index} is no index of safetensors files: {error!r}") from error
        lost = [name for name in names if not (folder / name).is_file()]
        if lost:
            raise CheckpointError(
                f"{key}: {folder} lacks {len(lost)} of the {len(names)} files that {INDEX} names: {', '.join(lost)}"
            )
        return cls(folder, tuple(read_shard(folder / name) for name in names), content)

    def specs(self) -> dict[str, StoredTensor]:
        """Return the tensors by the model's names. Raises CheckpointError for one that stands there twice."""
        found: dict[str, StoredTensor] = {}
        for shard in self.shards:
            for tensor in shard.tensors:
                name = shard.own_name(tensor.name)
                if name in found:
                    raise CheckpointError(f"{self.folder}: {name} stands in two files, the second is {shard.file}.")
                if name is not None:
                    found[name] = tensor
        return found

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Read the tensors one by one, under the model's names. Raises CheckpointError for a damaged file."""
        for shard in self.shards:
            try:
                with safe_open(self.folder / shard.file, framework="pt", device="cpu") as handle:
                    for stored in shard.tensors:
                        name = shard.own_name(stored.name)
                        if name is not None:
                            yield name, handle.get_tensor(stored.name)
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{self.folder / shard.file} cannot be read: {error}") from error

    def write(self, folder: Path, state: Mapping[str, torch.Tensor]) -> None:
        """Write tensors by the model's names into files cut as these are; those that are new go into the last.

        A file whose tensors have the types and shapes they had is what it was, byte for byte but for the values.
        """
        known = set(self.specs())
        new = [name for name in state if name not in known]
        changed, weight_map, total = False, {}, 0
        for number, shard in enumerate(self.shards):
            more = new if number == len(self.shards) - 1 else []
            if not more and _fits(shard, state):
                _write_as(folder / shard.file, shard, state)
            else:
                changed = True
                held = [(shard.own_name(tensor.name) or "", tensor.name) for tensor in shard.tensors]
                held += [(name, name) for name in more]
                save_tensors(folder / shard.file, {stored: state[name] for name, stored in held if name in state})
            for stored in [*(tensor.name for tensor in shard.tensors), *more]:
                name = shard.own_name(stored) or ""
                if name in state and shard.is_indexed:
                    weight_map[stored] = shard.file
                    total += state[name].nbytes
        if self.index is not None:
            (folder / INDEX).write_bytes(index_of(weight_map, total) if changed else self.index)


def write_new(folder: Path, state: Mapping[str, torch.Tensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write tensors into one file, or into several with an index when they are more than ``shard_bytes``."""
    groups: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in state.items():
        if groups[-1] and size + tensor.nbytes > shard_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    if len(groups) == 1:
        save_tensors(folder / SINGLE, state)
        return
    files = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    for file, group in zip(files, groups, strict=True):
        save_tensors(folder / file, group)
    weight_map = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    (folder / INDEX).write_bytes(index_of(weight_map, sum(tensor.nbytes for tensor in state.values())))


def save_tensors(file: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Write one file; tensors that share memory are separated."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        value = tensor.detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        tensors[name] = value.clone() if storage in seen else value
        seen.add(storage)
    save_file(tensors, file, metadata={"format": "pt"})


def index_of(weight_map: Mapping[str, str], total: int) -> bytes:
    """Return the content of an index, as transformers writes it."""
    values = {"metadata": {"total_size": total}, "weight_map": dict(weight_map)}
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()


def read_shard(file: Path) -> Shard:
    """Read the header of one file. Raises CheckpointError for one that is cut off or no safetensors."""
    size = file.stat().st_size
    with open(file, "rb") as stream:
        length = stream.read(8)
        header = stream.read(int.from_bytes(length, "little")) if len(length) == 8 else b""
    try:
        content: dict[str, Any] = json.loads(header)
        content.pop("__metadata__", None)
        tensors = [
            StoredTensor(name, DTYPES[item["dtype"]], tuple(item["shape"]), *map(int, item["data_offsets"]))
            for name, item in content.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is no safetensors file, or the beginning of one: {error!r}") from error
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    needed = 8 + len(header) + max((tensor.end for tensor in tensors), default=0)
    if size < needed:
        raise CheckpointError(f"{file} is cut off: it has {size:,} bytes and needs {needed:,}.")
    return Shard(file.name, length + header, tuple(tensors))


def _fits(shard: Shard, state: Mapping[str, torch.Tensor]) -> bool:
    """Whether all tensors of a file come as they stood there, without gaps between them."""
    end = 0
    for tensor in shard.tensors:
        value = state.get(shard.own_name(tensor.name) or "")
        if value is None or value.dtype != tensor.dtype or tuple(value.shape) != tensor.shape or tensor.begin != end:
            return False
        end = tensor.end
    return True


def _write_as(file: Path, shard: Shard, state: Mapping[str, torch.Tensor]) -> None:
    with open(file, "wb") as stream:
        stream.write(shard.header)
        for tensor in shard.tensors:
            value = state[shard.own_name(tensor.name) or ""].detach().cpu().contiguous().reshape(-1)
            if value.numel():
                stream.write(value.view(torch.uint8).numpy().data)
