"""Where the weights of a run come from: files, read block by block, or a model built with random ones.

From files each rank reads what it holds and nothing else: no rank ever has a whole model, and none is converted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from plugrl.checkpoints.safetensors_file import TensorSpec
from plugrl.checkpoints.source import SafetensorsSource, TensorSource
from plugrl.errors import CheckpointError
from plugrl.models.factory import get_model
from plugrl_engine_megatron.boxes import Held
from plugrl_models_hf.config import resolve_config
from plugrl_models_hf.loading import model_folder

_UNFUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_NEW = ("score.",)


class TensorsSource(TensorSource):
    """Tensors in memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], where: str) -> None:
        self.where = where
        self._tensors = dict(tensors)
        self.specs = {name: TensorSpec.of(tensor) for name, tensor in self._tensors.items()}

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """As the contract says."""
        region = tuple(slice(start, start + size) for start, size in zip(offsets, sizes, strict=True))
        return self._tensors[name][region]

    def close(self) -> None:
        """Forget them."""
        self._tensors = {}


class FolderSource(TensorSource):
    """The weights of a Hugging Face folder, under the names that a model has for them.

    Folders have a tensor for each expert, models one for all of a layer. A head for values may be lacking: it is zero.
    """

    def __init__(self, files: Iterable[Path], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._files = SafetensorsSource(files)
        self.where = self._files.where
        self.specs = self._files.specs
        self._shapes = shapes

    def read(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """As the contract says. Raises CheckpointError for a tensor that is not there or has another shape."""
        if name in self.specs:
            if self.specs[name].shape != tuple(self._shapes[name]):
                raise CheckpointError(
                    f"{self.where}: {name} has shape {list(self.specs[name].shape)}, the model "
                    f"{list(self._shapes[name])}."
                )
            return self._files.read(name, offsets, sizes)
        prefix, _, kind = name.rpartition(".")
        if kind in _UNFUSED and f"{prefix}.0.{_UNFUSED[kind][0]}.weight" in self.specs:
            return self._expert(prefix, kind, offsets, sizes)
        if name.startswith(_NEW):
            return torch.zeros(tuple(sizes))
        raise CheckpointError(f"{self.where} lacks {name}.")

    def _expert(self, prefix: str, kind: str, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
        """Read a block of one expert and of one of its matrices, which is all that a rank asks for at a time."""
        parts = _UNFUSED[kind]
        rows = self.specs[f"{prefix}.{offsets[0]}.{parts[0]}.weight"].shape[0]
        part, first = divmod(offsets[1], rows)
        block = self._files.read(f"{prefix}.{offsets[0]}.{parts[part]}.weight", (first, offsets[2]), sizes[1:])
        return block.unsqueeze(0)

    def close(self) -> None:
        """Unmap the files."""
        self._files.close()


def open_origin(model_config: Any, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> TensorSource:
    """Open the weights that ``model:`` names. ``shapes``: of the model's tensors, by name."""
    config = resolve_config(model_config)
    if config.path is not None:
        folder = model_folder(config)
        files = sorted(folder.glob("model*.safetensors"))
        if files:
            return FolderSource(files, shapes)
    policy = get_model(model_config, torch_dtype=dtype)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in policy.named_parameters():
        published = policy.published_name(name)
        if published is not None:
            tensors.setdefault(published, tensor.detach())
    return TensorsSource(tensors, "the model")


def fill(source: TensorSource, held: Iterable[Held]) -> None:
    """Read blocks into the memory where they belong."""
    for one in held:
        one.write(source.read(one.block.key, one.block.offsets, one.block.sizes))
