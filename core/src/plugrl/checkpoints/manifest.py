"""The list of what belongs to a checkpoint: every file with its size and hash. A folder without one is incomplete."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plugrl.errors import CheckpointError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and SHA-256 of one file."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a complete checkpoint holds.

    sequence: counts up with every checkpoint written into one folder, whatever its step; the newest has the highest.
    files: by path relative to the checkpoint, with forward slashes.
    """

    step: int
    sequence: int
    files: dict[str, FileRecord]
    format_version: int = FORMAT_VERSION

    @staticmethod
    def of(directory: Path, *, step: int, sequence: int) -> Manifest:
        """Read every file in ``directory`` and list it."""
        files = {name: FileRecord(path.stat().st_size, sha256_of(path)) for name, path in files_in(directory)}
        return Manifest(step=step, sequence=sequence, files=files)

    @staticmethod
    def load(directory: Path) -> Manifest:
        """Read the manifest of a checkpoint. Raises CheckpointError when it is missing, malformed or too new."""
        path = directory / MANIFEST_NAME
        if not path.is_file():
            raise CheckpointError(f"{directory} is incomplete: {MANIFEST_NAME} is missing.")
        try:
            return _parse(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is no manifest: {error}.") from error

    def save(self, directory: Path) -> None:
        """Write the manifest into ``directory``; it is then complete."""
        text = json.dumps(asdict(self), indent=1, sort_keys=True)
        (directory / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")

    def verify(self, directory: Path) -> None:
        """Compare with what lies on disk. Raises CheckpointError naming the files that are missing or altered.

        Sizes are compared before anything is read, so that a truncated file is found at once.
        """
        faults = list(self._size_faults(directory)) or list(self._hash_faults(directory))
        if faults:
            more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise CheckpointError(f"{directory} cannot be used: {'; '.join(faults[:3])}{more}.")

    def _size_faults(self, directory: Path) -> Iterator[str]:
        for name, record in sorted(self.files.items()):
            path = directory / name
            if not path.is_file():
                yield f"{name} is missing"
            elif path.stat().st_size != record.size:
                yield f"{name} was altered: {path.stat().st_size} bytes instead of {record.size}"

    def _hash_faults(self, directory: Path) -> Iterator[str]:
        for name, record in sorted(self.files.items()):
            if sha256_of(directory / name) != record.sha256:
                yield f"{name} was altered: its content has another hash"


def files_in(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield (relative name, path) of every file below ``directory``, sorted, without the manifest."""
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and name != MANIFEST_NAME:
            yield name, path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(directory: Path) -> None:
    """Force every file below ``directory`` and the folders themselves to disk."""
    for path in [directory, *directory.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _parse(raw: Any) -> Manifest:
    version = int(raw["format_version"])
    if version > FORMAT_VERSION:
        raise ValueError(f"its format {version} is newer than {FORMAT_VERSION}, the newest this version reads")
    files = {str(name): FileRecord(int(record["size"]), str(record["sha256"])) for name, record in raw["files"].items()}
    outside = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise ValueError(f"{outside[0]} lies outside the checkpoint")
    return Manifest(step=int(raw["step"]), sequence=int(raw["sequence"]), files=files, format_version=version)
