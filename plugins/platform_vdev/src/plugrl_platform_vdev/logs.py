"""What the device and its collectives did, one JSON line each, in ``VDEV_LOG/<stream>-<pid>.jsonl``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from plugrl_platform_vdev.settings import read_settings


def write(stream: str, **fields: Any) -> None:
    """Append a line to this process' file of a stream (``collectives``, ``operators``); nothing without VDEV_LOG."""
    folder = read_settings().log
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{stream}-{os.getpid()}.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")


def read(folder: Path, stream: str) -> list[dict[str, Any]]:
    """Return the lines of a stream of all processes, those of one process in their order."""
    files = sorted(folder.glob(f"{stream}-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
