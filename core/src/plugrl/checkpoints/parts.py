"""What several processes contribute to one checkpoint, and how the one that completes it learns that they are done.

A process that goes on writing after its call returned announces itself by an empty ``.pending-<part>`` and, when it is
done, replaces it by ``.part-<part>.json``: sizes and hashes of its files, or the error that stopped it. A process that
writes within its call leaves the latter alone. Plain files are the one channel that every launcher and node has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugrl.checkpoints.manifest import FileRecord
from plugrl.errors import CheckpointError

_PENDING = ".pending-"
_PART = ".part-"
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Part:
    """One process's contribution. files: by path relative to the folder of the part. notes: plain values for others.

    ties: for each further name of a tied tensor, the name under which it is stored.
    """

    files: Mapping[str, FileRecord] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    notes: Any = None
    error: str | None = None


def announce(folder: Path, name: str) -> None:
    """Say that the part ``name`` will be there later."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_PART}{name}.json").unlink(missing_ok=True)  # of an earlier save into the same folder
    (folder / f"{_PENDING}{name}").touch()


def deliver(folder: Path, name: str, part: Part) -> None:
    """Put a part into ``folder``; it appears whole, then its announcement goes.

    Where not even that can be written, as on a full disk, the announcement itself becomes an empty part, which is an
    error for whoever reads it, so that nobody waits for a part that never comes. Raises OSError then.
    """
    record = {
        "files": {path: [record.size, record.sha256] for path, record in part.files.items()},
        "ties": dict(part.ties),
        "notes": part.notes,
        "error": part.error,
    }
    scratch, announced = folder / f".writing{_PART}{name}", folder / f"{_PENDING}{name}"
    try:
        scratch.write_text(json.dumps(record), encoding="utf-8")
        os.replace(scratch, folder / f"{_PART}{name}.json")
    except OSError:
        scratch.unlink(missing_ok=True)
        if announced.exists():
            os.replace(announced, folder / f"{_PART}{name}.json")  # takes no room
        raise
    announced.unlink(missing_ok=True)


def pending(root: Path) -> list[str]:
    """Names of the parts below ``root`` that were announced and are not there, with their folders."""
    return sorted(
        str(path.relative_to(root)).replace(_PENDING, "")
        for path in root.rglob(f"{_PENDING}*")
        if not _part_of(path).exists()
    )


def read_part(folder: Path, name: str, *, deadline: float) -> Part:
    """Wait for one part until ``deadline`` (of time.monotonic) and return it. Raises CheckpointError with its error."""
    path = folder / f"{_PART}{name}.json"
    while not path.exists():
        if time.monotonic() > deadline:
            raise CheckpointError(f"{name} did not finish its part of {folder} in time.")
        time.sleep(_POLL_S)
    return _read(path)


def wait_for_all(root: Path, *, timeout_s: float) -> None:
    """Wait until nothing that was announced below ``root`` is missing. Raises CheckpointError naming what is.

    A part that failed ends the wait at once.
    """
    deadline = time.monotonic() + timeout_s
    while missing := pending(root):
        for path in root.rglob(f"{_PART}*.json"):
            _read(path)
        if time.monotonic() > deadline:
            raise CheckpointError(f"{', '.join(missing[:4])} did not finish in {timeout_s:.0f} s.")
        time.sleep(_POLL_S)


def collect(root: Path) -> tuple[dict[str, FileRecord], dict[str, dict[str, str]]]:
    """Take all parts away; returns their files, by path relative to ``root``, and for each folder its ties.

    A file whose size on disk is another one is left out: who lists the folder then reads it. Raises CheckpointError
    for a part that failed.
    """
    files: dict[str, FileRecord] = {}
    ties: dict[str, dict[str, str]] = {}
    for path in sorted(root.rglob(f"{_PART}*.json")):
        part = _read(path)
        if part.ties:
            ties.setdefault(path.parent.relative_to(root).as_posix(), {}).update(part.ties)
        for name, record in part.files.items():
            target = path.parent / name
            if target.is_file() and target.stat().st_size == record.size:
                files[target.relative_to(root).as_posix()] = record
        path.unlink()
    for path in root.rglob(f"{_PENDING}*"):
        path.unlink()
    return files, ties


def _part_of(pending_path: Path) -> Path:
    return pending_path.with_name(pending_path.name.replace(_PENDING, _PART) + ".json")


def _read(path: Path) -> Part:
    text = path.read_text(encoding="utf-8")
    if not text:
        name = path.name.removeprefix(_PART).removesuffix(".json")
        raise CheckpointError(f"{name} could not write, not even why: the disk may be full")
    raw = json.loads(text)
    if raw["error"] is not None:
        raise CheckpointError(raw["error"])
    files = {name: FileRecord(int(size), str(sha256)) for name, (size, sha256) in raw["files"].items()}
    return Part(files=files, ties=raw["ties"], notes=raw["notes"])
