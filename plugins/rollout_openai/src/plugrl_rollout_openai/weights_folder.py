"""Weights on their way to an engine: a folder of Hugging Face files in memory that processes of this node share.

Engines in other processes, of one device or several, and servers read it as they read any model. The tensors are
mapped, not copied, by each of them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from plugrl.errors import ConfigError, WeightSyncError, one_of
from plugrl.models import get_model

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
_SHARED = Path("/dev/shm")
_BUCKET = 1 << 30
_TOLD = 5

Shapes = dict[str, tuple[int, ...]]


class WeightsFolder:
    """The folder of one backend; there are at most two versions in it, the one in use and the next."""

    def __init__(self, model_config: Any, parent: str | None, name: str, bucket_bytes: int = _BUCKET) -> None:
        self._config = model_config
        self._bucket = bucket_bytes
        base = Path(parent) if parent else _SHARED if os.access(_SHARED, os.W_OK) else Path(tempfile.gettempdir())
        try:
            base.mkdir(parents=True, exist_ok=True)
            self.root = Path(tempfile.mkdtemp(prefix=f"plugrl-weights-{name}-", dir=base))
        except OSError as error:
            raise ConfigError(f"rollout.options.weights_dir: {base} cannot be written: {error}.") from error
        if parent:
            self.root.chmod(0o755)  # Servers may run as another user.
        self.current: Path | None = None
        self._start: Path | None = None
        self._shapes: Shapes | None = None
        self._count = 0

    # ------------------------------------------------------------------------------------------------------ the start
    def start(self) -> Path:
        """Return the folder of the weights that the engine is built with: ``model.path``, or new random ones."""
        if self._start is None:
            path = _key(self._config, "path")
            self._start = Path(path) if path else self._built()
        return self._start

    def _built(self) -> Path:
        """Write the random weights that the policy starts from, which an engine cannot make itself."""
        policy = get_model(self._config)
        folder = self.root / "start"
        folder.mkdir()
        named = ((policy.published_name(name), tensor) for name, tensor in policy.state_dict().items())
        self._write_shards(folder, ((name, tensor) for name, tensor in named if name is not None))
        policy.save_config(folder)
        return folder

    # ------------------------------------------------------------------------------------------------------- versions
    def write(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> Path:
        """Write all tensors of a version and return their folder; the caller then makes it the current one.

        Raises WeightSyncError when a tensor is missing, unknown or of another shape; nothing is left behind then.
        """
        self._count += 1
        folder = self.root / f"v{version}-{self._count}"
        folder.mkdir()
        try:
            shapes = self._write_shards(folder, tensors)
            self.check(shapes, version)
            self._copy_texts(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._shapes = shapes
        return folder

    def check(self, shapes: Mapping[str, tuple[int, ...]], version: int) -> None:
        """Raise WeightSyncError unless these are the tensors of the model; those that are tied may be left out."""
        known = self._known()
        if known is None:
            return
        missing = known.keys() - shapes.keys() - self._tied()
        unknown = shapes.keys() - known.keys() - self._tied()
        other = [name for name in shapes.keys() & known.keys() if tuple(shapes[name]) != known[name]]
        problems = [
            f"{word}: {one_of(sorted(names)[:_TOLD])}"
            for word, names in (("missing", missing), ("unknown", unknown), ("of another shape", other))
            if names
        ]
        if problems:
            raise WeightSyncError(f"Weights of version {version} do not fit the model, {'; '.join(problems)}.")

    def keep(self, folder: Path) -> None:
        """Make a folder the current one and drop the one before, which no engine needs any more."""
        old, self.current = self.current, folder
        if old is not None and old != folder and old.parent == self.root:
            shutil.rmtree(old, ignore_errors=True)

    def discard(self, folder: Path) -> None:
        """Drop a folder that came to nothing."""
        if folder != self.current and folder.parent == self.root:
            shutil.rmtree(folder, ignore_errors=True)

    def holds(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether the current folder has exactly these values."""
        if self.current is None:
            return False
        stored = dict(read_folder(self.current))
        return stored.keys() == tensors.keys() and all(
            torch.equal(stored[name], tensor.detach().cpu()) for name, tensor in tensors.items()
        )

    def write_adapter(self, tensors: Mapping[str, torch.Tensor], adapter: Mapping[str, Any], version: int) -> Path:
        """Write an adapter as PEFT does and return its folder."""
        self._count += 1
        folder = self.root / f"adapter-v{version}-{self._count}"
        folder.mkdir()
        save_file(
            {name: _own(tensor) for name, tensor in tensors.items()}, folder / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )  # fmt: skip
        (folder / "adapter_config.json").write_text(json.dumps(dict(adapter), default=_plain, indent=2))
        return folder

    def close(self) -> None:
        """Remove everything; calling it again does nothing."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.current = None

    # -------------------------------------------------------------------------------------------------------- details
    def _write_shards(self, folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> Shapes:
        """Write files of a bucket each: a tensor is only good until the next one is taken."""
        shapes, places = Shapes(), dict[str, str]()
        bucket: dict[str, torch.Tensor] = {}
        size = total = 0
        for name, tensor in tensors:
            if name in shapes:
                raise WeightSyncError(f"Tensor {name} came twice.")
            shapes[name] = tuple(tensor.shape)
            if bucket and size + tensor.nbytes > self._bucket:
                size = self._flush(folder, bucket, places)
            bucket[name] = _own(tensor)
            size, total = size + tensor.nbytes, total + tensor.nbytes
        self._flush(folder, bucket, places)
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
        return shapes

    def _flush(self, folder: Path, bucket: dict[str, torch.Tensor], places: dict[str, str]) -> int:
        if bucket:
            name = f"model-{len(set(places.values())) + 1:05}.safetensors"
            try:
                save_file(bucket, folder / name, metadata={"format": "pt"})
            except OSError as error:
                raise WeightSyncError(
                    f"{folder} has no room for the weights: {error}. rollout.options.weights_dir names another folder."
                ) from error
            places.update(dict.fromkeys(bucket, name))
            bucket.clear()
        return 0

    def _copy_texts(self, folder: Path) -> None:
        """Put the configuration beside the weights, which some engines read anew."""
        start = self.start()
        for path in start.glob("*.json") if start.is_dir() else ():
            if path.name != INDEX:
                shutil.copyfile(path, folder / path.name)

    def _known(self) -> Shapes | None:
        if self._shapes is None and self.start().is_dir():
            self._shapes = shapes_of(self.start()) or None
        return self._shapes

    def _tied(self) -> set[str]:
        path = self.start() / "config.json"
        if not path.is_file():
            return set()
        return {"lm_head.weight"} if json.loads(path.read_text()).get("tie_word_embeddings") else set()


def read_folder(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a folder's safetensors files, mapped."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)


def shapes_of(folder: Path) -> Shapes:
    """Return the shapes of a folder's tensors, read from the heads of its files."""
    found: Shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    return found


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host that shares memory with nothing."""
    return tensor.detach().to("cpu", copy=True).contiguous()



def _key(config: Any, name: str) -> Any:
    """Read a key of a section, a mapping or None."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _plain(value: Any) -> Any:
    """What JSON does not know: sets as lists, the rest as text."""
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
