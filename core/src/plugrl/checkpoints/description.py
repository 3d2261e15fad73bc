"""What lies in a checkpoint, told from its headers: nothing large is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.checkpoints.layout import (
    MODEL_SHARDS,
    OLD_STEP_FILE,
    OPTIMIZER_FILE,
    OPTIMIZER_GROUPS,
    OPTIMIZER_SHARDS,
    PRETRAINED,
    STEP_FILE,
    TRAINING_STATE,
    holds_shards,
    weights_file_name,
)
from plugrl.checkpoints.locate import locate, part_of
from plugrl.checkpoints.manifest import MANIFEST_NAME, Manifest, files_in
from plugrl.checkpoints.reading import open_optimizer, open_weights
from plugrl.checkpoints.safetensors_file import TensorSpec
from plugrl.checkpoints.tensors import read_json
from plugrl.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Description:
    """A checkpoint at a glance.

    files: (name, bytes) of each. record: training_step.json, empty without one. weights, optimizer: what tensors there
    are, empty without any. groups: parameter groups of the optimizer. complete: whether it has a manifest.
    """

    path: Path
    complete: bool
    files: list[tuple[str, int]]
    record: dict[str, Any]
    formats: tuple[str, ...]
    weights: Mapping[str, TensorSpec]
    optimizer: Mapping[str, TensorSpec]
    stateful: int
    groups: list[dict[str, Any]]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(size for _, size in self.files)


def describe(path: str | Path) -> Description:
    """Describe a checkpoint. Raises CheckpointError when there is none at ``path`` or a file in it cannot be read."""
    folder = locate(Path(path))
    if not folder.is_dir() or not any((folder / name).is_dir() for name in (PRETRAINED, TRAINING_STATE)):
        raise CheckpointError(f"There is no checkpoint at {path}: {folder} holds neither {PRETRAINED}/ nor "
                              f"{TRAINING_STATE}/.")  # fmt: skip
    if (folder / MANIFEST_NAME).is_file():
        Manifest.load(folder)
    training = folder / TRAINING_STATE
    written = [training / name for name in (STEP_FILE, OLD_STEP_FILE) if (training / name).is_file()]
    record: dict[str, Any] = read_json(written[0]) if written else {}
    weights: Mapping[str, TensorSpec] = {}
    part = part_of(Path(path))
    model = folder / PRETRAINED if part is None or part == training else part
    formats = tuple(
        name
        for name, there in (
            (weights_file_name(model), (model / weights_file_name(model)).is_file()),
            (f"{MODEL_SHARDS}/", holds_shards(model / MODEL_SHARDS)),
        )
        if there
    )
    if formats:
        with open_weights(model) as source:
            weights = source.specs
    optimizer: Mapping[str, TensorSpec] = {}
    stateful = 0
    if (training / OPTIMIZER_FILE).is_file() or holds_shards(training / OPTIMIZER_SHARDS):
        state, slots = open_optimizer(training)
        with state:
            optimizer, stateful = state.specs, len(slots)
    groups = read_json(training / OPTIMIZER_GROUPS) if (training / OPTIMIZER_GROUPS).is_file() else []
    return Description(
        path=folder,
        complete=(folder / MANIFEST_NAME).is_file(),
        files=[(name, file.stat().st_size) for name, file in files_in(folder)],
        record=record,
        formats=formats,
        weights=weights,
        optimizer=optimizer,
        stateful=stateful,
        groups=groups,
    )
