"""Does every worker see the same folder? A relative or node-local path would scatter a checkpoint over the nodes."""

from __future__ import annotations

import uuid
from pathlib import Path

from plugrl.errors import CheckpointError

_PREFIX = ".shared-probe-"


def place_probe(root: str | Path) -> Path:
    """Write a small file into ``root`` (created if needed) and return its absolute path; the driver does this."""
    folder = Path(root).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f"{_PREFIX}{uuid.uuid4().hex}"
    probe.write_text(probe.name, encoding="utf-8")
    return probe


def check_probe(probe: str | Path, node: str) -> None:
    """Look for the driver's file from a worker on ``node``. Raises CheckpointError when the folder is not shared."""
    path = Path(probe)
    if not path.is_file() or path.read_text(encoding="utf-8") != path.name:
        raise CheckpointError(
            f"Node {node} does not see {path.parent} as the driver does. "
            "Set trainer.default_local_dir to a folder on a file system that all nodes share."
        )


def remove_probe(probe: str | Path) -> None:
    """Remove the driver's file; calling it again does nothing."""
    Path(probe).unlink(missing_ok=True)
