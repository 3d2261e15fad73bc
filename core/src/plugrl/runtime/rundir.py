"""The folder of a run for sockets and other short-lived files, and the removal of those that dead runs left."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from plugrl.runtime.process import is_alive, started_at

_PREFIX = "plugrl-"


def create_run_directory(run_id: str) -> Path:
    """Make a folder that only this user can enter; its name says which process owns it. Removes those of dead owners.

    The path is short, since the path of a Unix socket may have about 100 characters.
    """
    root = Path(tempfile.gettempdir())
    sweep(root)
    pid = os.getpid()
    path = root / f"{_PREFIX}{os.getuid()}-{pid}-{started_at(pid) or 0}-{run_id}"
    path.mkdir(mode=0o700)
    return path


def remove_run_directory(path: Path) -> None:
    """Remove the folder and what is in it."""
    shutil.rmtree(path, ignore_errors=True)


def sweep(root: Path) -> list[Path]:
    """Remove this user's run folders whose owner is gone, and return them."""
    removed = []
    for path in root.glob(f"{_PREFIX}{os.getuid()}-*-*-*"):
        _, _, pid, started, _ = (path.name.split("-", 4) + [""] * 5)[:5]
        if pid.isdigit() and not is_alive(int(pid), "" if started == "0" else started):
            remove_run_directory(path)
            removed.append(path)
    return removed
