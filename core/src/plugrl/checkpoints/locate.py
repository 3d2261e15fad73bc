"""Which checkpoint a path means: people name a file in it, its model folder, the step, the folder of steps, the run."""

from __future__ import annotations

from pathlib import Path

from plugrl.checkpoints.layout import PRETRAINED, PRETRAINED_EMA, TRAINING_STATE
from plugrl.checkpoints.manifest import MANIFEST_NAME

_PARTS = (PRETRAINED, PRETRAINED_EMA, TRAINING_STATE)
_FOLDER = "checkpoints"


def locate(path: Path) -> Path:
    """Return the folder of a step, or one that holds steps, for any path in or around it; links are followed.

    What is none of these is returned as it is: who opens it says what is missing.
    """
    found = path.resolve()
    if found.is_file():
        found = found.parent
    if found.name in _PARTS:
        found = found.parent
    if not (found / MANIFEST_NAME).is_file() and (found / _FOLDER).is_dir():
        found = found / _FOLDER
    return found
