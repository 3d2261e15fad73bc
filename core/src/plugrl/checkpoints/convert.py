"""From shards to the one file that a model family's own loader reads: one process, no accelerator, no process group."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plugrl.checkpoints.layout import (
    ADAPTER_FILE,
    MODEL_FILE,
    MODEL_SHARDS,
    PRETRAINED,
    SHARD_INDEX,
    TIED,
    TRAINING_STATE,
    holds_shards,
    weights_file_name,
)
from plugrl.checkpoints.locate import locate, part_of
from plugrl.checkpoints.manifest import MANIFEST_NAME, FileRecord, Manifest
from plugrl.checkpoints.safetensors_file import SafetensorsWriter, TensorSpec
from plugrl.checkpoints.shards import ShardSource
from plugrl.checkpoints.source import SafetensorsSource
from plugrl.errors import CheckpointError


def convert(path: str | Path, *, delete_shards: bool = False) -> Path:
    """Write ``model.safetensors`` (an adapter's ``adapter_model.safetensors``) beside the shards and return its path.

    ``path``: a step, its model folder, or what :func:`plugrl.checkpoints.locate.locate` takes. Tensors pass through
    memory one at a time. The file is written under another name, opened again and compared with the index before it
    gets its own; the shards are removed only after that. Raises CheckpointError when there are no shards, or when what
    was written is not what the index says.
    """
    step, folder = model_folder(path)
    shards = folder / MODEL_SHARDS
    if not holds_shards(shards):
        raise CheckpointError(
            f"There are no shards to convert: {shards} holds no index. Formats that write them: "
            "checkpoint_format dcp and safetensors_dcp, in a sharded run."
        )
    target = folder / weights_file_name(folder)
    scratch = folder / f".{target.name}.writing"
    with ShardSource(shards, "model.") as source:
        try:
            record = _write(source, scratch, _ties(step, target))
            _check(scratch, source.specs)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
    # The manifest lets go of what changes before it changes, so that the checkpoint is whole at any moment.
    _list(step, removed=target)
    os.replace(scratch, target)
    _list(step, added={target: record})
    if delete_shards:
        _list(step, removed=shards)
        (shards / SHARD_INDEX).unlink()  # first: without it nobody takes what is left for shards
        shutil.rmtree(shards)
    return target


def gather_if_needed(path: str | Path) -> None:
    """Write the one file of a model that lies in shards alone, as loading it needs. Raises as :func:`convert`."""
    _, folder = model_folder(path)
    if holds_shards(folder / MODEL_SHARDS) and not (folder / weights_file_name(folder)).is_file():
        convert(folder)


def model_folder(path: str | Path) -> tuple[Path, Path]:
    """Return the folder of the step and that of its model: the one that ``path`` lies in, averages included.

    Raises CheckpointError when there is none.
    """
    part = part_of(Path(path))
    if part is not None and part.name != TRAINING_STATE:
        return part.parent, part
    step = locate(Path(path))
    folder = step / PRETRAINED
    if not folder.is_dir():
        given = Path(path)
        if any((given / name).exists() for name in (MODEL_SHARDS, MODEL_FILE, ADAPTER_FILE)):
            return given.resolve(), given.resolve()  # a model folder under a name of its own
        raise CheckpointError(f"{path} is no checkpoint: {folder} does not exist.")
    return step, folder


def _write(source: ShardSource, target: Path, ties: Mapping[str, str]) -> FileRecord:
    writer = SafetensorsWriter(target, source.specs, {"format": "pt", **ties})
    try:
        for name in writer.names:
            writer.add(name, source.whole(name))
        return writer.close()
    except BaseException:
        writer.discard()
        raise


def _ties(step: Path, target: Path) -> dict[str, str]:
    """Metadata on tied tensors: as the manifest knows them, else as an earlier file of the same model does."""
    root = _listed(step)
    if root is not None:
        known = Manifest.load(root).ties.get(step.relative_to(root).as_posix())
        if known:
            return {f"{TIED}{name}": stored for name, stored in known.items()}
    if target.is_file():
        with SafetensorsSource([target]) as source:
            return {key: value for key, value in source.metadata.items() if key.startswith(TIED)}
    return {}


def _check(path: Path, expected: Mapping[str, TensorSpec]) -> None:
    with SafetensorsSource([path]) as written:
        if dict(written.specs) != dict(expected):
            differing = sorted(name for name in {*written.specs, *expected}
                               if written.specs.get(name) != expected.get(name))  # fmt: skip
            raise CheckpointError(f"{path} is not what the index says: {', '.join(differing[:5])}.")


def _listed(step: Path) -> Path | None:
    """The folder with the manifest: the step, or what holds it, as for a critic; None without one."""
    return next((folder for folder in (step, step.parent) if (folder / MANIFEST_NAME).is_file()), None)


def _list(step: Path, *, added: Mapping[Path, FileRecord] | None = None, removed: Path | None = None) -> None:
    """Bring the manifest up to date, where there is one; nothing is read again."""
    root = _listed(step)
    if root is None:
        return
    manifest = Manifest.load(root)
    gone = None if removed is None else removed.relative_to(root).as_posix()
    files = {
        name: record for name, record in manifest.files.items()
        if gone is None or not (name == gone or name.startswith(f"{gone}/"))
    }  # fmt: skip
    files.update({path.relative_to(root).as_posix(): record for path, record in (added or {}).items()})
    replace(manifest, files=files).save(root)
