"""The list of what belongs to a checkpoint: every file with its size and hash. A folder without one is incomplete.

The list itself carries a checksum and has one spelling, so that any altered byte of it is noticed too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plugrl.errors import CheckpointError

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 2
"""2 added the checksum; 1 is still read."""
_CHECKSUM = "checksum"
_READERS = 4
"""Files hashed at a time: hashing releases the interpreter, and disks like several requests."""


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
    ties: for each folder with a model (``.`` for the first), the further names of tied tensors and what they are
    stored as.
    """

    step: int
    sequence: int
    files: dict[str, FileRecord]
    format_version: int = FORMAT_VERSION
    ties: dict[str, dict[str, str]] = field(default_factory=dict)

    @staticmethod
    def of(
        directory: Path,
        *,
        step: int,
        sequence: int,
        known: Mapping[str, FileRecord] | None = None,
        ties: Mapping[str, dict[str, str]] | None = None,
    ) -> Manifest:
        """List every file in ``directory``. Those in ``known``, hashed as they were written, are not read again."""
        known = known or {}
        found = dict(files_in(directory))
        unknown = [name for name in found if name not in known]
        with ThreadPoolExecutor(_READERS) as pool:
            hashes = pool.map(sha256_of, (found[name] for name in unknown))
            records = {name: FileRecord(found[name].stat().st_size, digest)
                       for name, digest in zip(unknown, hashes, strict=True)}  # fmt: skip
        files = {name: known[name] if name in known else records[name] for name in found}
        return Manifest(step=step, sequence=sequence, files=files, ties=dict(ties or {}))

    @staticmethod
    def load(directory: Path) -> Manifest:
        """Read the manifest of a checkpoint. Raises CheckpointError when it is missing, altered, or too new."""
        path = directory / MANIFEST_NAME
        if not path.is_file():
            raise CheckpointError(f"{directory} is incomplete: {MANIFEST_NAME} is missing.")
        try:
            return _parse(path.read_bytes().decode())
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is no manifest: {error}.") from error

    def save(self, directory: Path) -> None:
        """Write the manifest into ``directory``, which is then complete. It appears whole or not at all."""
        scratch = directory / f".{MANIFEST_NAME}.writing"
        with open(scratch, "wb") as stream:
            stream.write(self._text().encode())
            os.fsync(stream.fileno())
        os.replace(scratch, directory / MANIFEST_NAME)

    def _text(self) -> str:
        values = asdict(self)
        plain = json.dumps(values, indent=1, sort_keys=True)
        values[_CHECKSUM] = hashlib.sha256(plain.encode()).hexdigest()
        return json.dumps(values, indent=1, sort_keys=True) + "\n"

    def verify(self, directory: Path) -> None:
        """Compare with what lies on disk. Raises CheckpointError naming the files that are missing or altered.

        Sizes are compared before anything is read, so that a truncated file is found at once.
        """
        try:
            faults = list(self._size_faults(directory)) or list(self._hash_faults(directory))
        except OSError as error:  # a folder that may not be entered
            raise CheckpointError(f"{directory} cannot be read: {error.strerror or error}.") from error
        if faults:
            more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise CheckpointError(f"{directory} cannot be used: {'; '.join(faults[:3])}{more}.")

    def unlisted(self, directory: Path) -> list[str]:
        """Return the names of files in ``directory`` that the manifest does not list."""
        return [name for name, _ in files_in(directory) if name not in self.files]

    def _size_faults(self, directory: Path) -> Iterator[str]:
        for name, record in sorted(self.files.items()):
            path = directory / name
            if not path.is_file():
                yield f"{name} is missing"
            elif path.stat().st_size != record.size:
                yield f"{name} was altered: {path.stat().st_size} bytes instead of {record.size}"

    def _hash_faults(self, directory: Path) -> Iterator[str]:
        names = sorted(self.files)
        with ThreadPoolExecutor(_READERS) as pool:
            for fault in pool.map(lambda name: self._hash_fault(directory, name), names):
                if fault is not None:
                    yield fault

    def _hash_fault(self, directory: Path, name: str) -> str | None:
        try:
            digest = sha256_of(directory / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
        return None if digest == self.files[name].sha256 else f"{name} was altered: its content has another hash"


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


def sync(directory: Path, known: Mapping[str, FileRecord] | None = None) -> None:
    """Force every file below ``directory`` and the folders to disk, without the files in ``known``: they are there."""
    known = known or {}
    unsure = [path for path in directory.rglob("*") if path.relative_to(directory).as_posix() not in known]
    # At the same time: file systems with a journal then write it once for all of them.
    with ThreadPoolExecutor(min(len(unsure), 16) or 1) as pool:
        list(pool.map(_sync_one, unsure))
    _sync_one(directory)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(text: str) -> Manifest:
    raw: Any = json.loads(text)
    version = int(raw["format_version"])
    if version > FORMAT_VERSION:
        raise ValueError(f"its format {version} is newer than {FORMAT_VERSION}, the newest this version reads")
    files = {str(name): FileRecord(int(record["size"]), str(record["sha256"])) for name, record in raw["files"].items()}
    outside = [name for name in files if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise ValueError(f"{outside[0]} lies outside the checkpoint")
    manifest = Manifest(
        step=int(raw["step"]),
        sequence=int(raw["sequence"]),
        files=files,
        format_version=version,
        ties={str(folder): dict(names) for folder, names in raw.get("ties", {}).items()},
    )
    if (version > 1 or _CHECKSUM in raw) and manifest._text() != text:
        raise ValueError("it was altered: its checksum is another one")
    return manifest
