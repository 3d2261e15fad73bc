"""Which checkpoint a path means: people name a file in it, its model folder, the step, the folder of steps, the run."""

from __future__ import annotations

from pathlib import Path

from plugrl.checkpoints.layout import PRETRAINED, PRETRAINED_EMA, TRAINING_STATE
from plugrl.checkpoints.manifest import MANIFEST_NAME

_PARTS = (PRETRAINED, PRETRAINED_EMA, TRAINING_STATE)
_FOLDER = "checkpoints"


def part_of(path: Path) -> Path | None:
    """Return the part of a checkpoint (a model folder, the training state) that a path means or lies in, else None.

    A folder of shards lies in its part.
    """
    near = path.resolve()
    if near.is_file():
        near = near.parent
    if near.name in _PARTS:
        return near
    # Further out the name alone does not tell: a folder of runs may be called so too.
    outer = near.parent
    known = any((outer.parent / name).exists() for name in (MANIFEST_NAME, TRAINING_STATE))
    return outer if outer.name in _PARTS and known else None


def locate(path: Path) -> Path:
    """Return the folder of a step, or one that holds steps, for any path in or around it; links are followed.

    What is none of these is returned as it is: who opens it says what is missing.
    """
    part = part_of(path)
    if part is not None:
        return part.parent
    found = path.resolve()
    if found.is_file():
        found = found.parent
    if not (found / MANIFEST_NAME).is_file() and (found / _FOLDER).is_dir():
        found = found / _FOLDER
    return found
