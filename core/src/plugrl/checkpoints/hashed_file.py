"""A file that is hashed while it is written, so that its hash costs no second pass, and synced once at its end."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from plugrl.checkpoints.manifest import FileRecord

_PIECE = 1 << 20
"""Bytes up to which writes are collected; longer ones go to the file as they are."""


class HashedFile:
    """Write-only. Hashing runs beside the write, in a thread: both release the interpreter.

    Data handed to :meth:`write` may be changed or freed as soon as the call returns. Leaving the ``with`` block by an
    error removes the file. ``seconds`` tells what each part took, which overlap.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.size = 0
        self.record: FileRecord | None = None
        self.seconds = {"hash": 0.0, "write": 0.0, "sync": 0.0}
        self._stream = open(path, "wb", buffering=0)
        self._hash = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-hash")
        self._small = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes."""
        view = memoryview(data).cast("B")
        self.size += len(view)
        if len(view) < _PIECE:
            self._small += view
            if len(self._small) >= _PIECE:
                self.flush()
        else:
            self.flush()
            self._put(view)
        return len(view)

    def flush(self) -> None:
        """Hand small pieces that were collected to the file."""
        if self._small:
            collected, self._small = self._small, bytearray()
            self._put(memoryview(collected))

    def close(self) -> FileRecord:
        """Sync and close; returns size and hash."""
        if self.record is None:
            self.flush()
            began = time.perf_counter()
            os.fsync(self._stream.fileno())
            self.seconds["sync"] = time.perf_counter() - began
            self._release()
            self.record = FileRecord(self.size, self._hash.hexdigest())
        return self.record

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:
        """Close without a sync and remove the file."""
        self._release()
        self.path.unlink(missing_ok=True)

    def _put(self, view: memoryview) -> None:
        hashed = self._hasher.submit(self._update, view)
        began = time.perf_counter()
        written = 0
        try:
            while written < len(view):
                written += self._stream.write(view[written:])
        finally:
            self.seconds["write"] += time.perf_counter() - began
            self.seconds["hash"] += hashed.result()

    def _update(self, view: memoryview) -> float:
        began = time.perf_counter()
        self._hash.update(view)
        return time.perf_counter() - began

    def _release(self) -> None:
        self._hasher.shutdown()
        self._stream.close()
