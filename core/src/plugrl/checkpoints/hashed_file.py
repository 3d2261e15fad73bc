"""A file that is hashed while it is written, so that its hash costs no second pass, and synced once at its end.

Where the system can be told so, the disk begins to write as soon as there is enough, instead of at the sync.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from plugrl.checkpoints.manifest import FileRecord

_PIECE = 1 << 20
"""Bytes up to which writes are collected; longer ones go to the file as they are."""
_BEHIND = 32 << 20
"""Bytes after which the disk is told to begin with what it has."""
_HELD = 256 << 20
"""Bytes that may be written before they are hashed: they are kept in memory so long."""
_BEGIN_WRITING = 2
"""SYNC_FILE_RANGE_WRITE of Linux."""


class HashedFile:
    """Write-only. Hashing runs beside the write, in a thread: both release the interpreter.

    Data handed to :meth:`write` may be changed or freed as soon as the call returns; data handed to
    :meth:`write_stable` stay as they are until the file is closed, so that nobody waits for their hash. Leaving the
    ``with`` block by an error removes the file. ``seconds`` tells what each part took, which overlap.
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
        self._unhashed: deque[tuple[Future[float], int]] = deque()
        self._small = bytearray()
        self._handed = self._begun = 0

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
            self._wait_for_hashes(0)
        return len(view)

    def write_stable(self, view: memoryview) -> None:
        """Append bytes that nobody changes before :meth:`close`; not too many of them are held at a time."""
        if len(view) < _PIECE:
            self.write(view)
            return
        self.size += len(view)
        self.flush()
        self._put(view)
        self._wait_for_hashes(_HELD)

    def flush(self) -> None:
        """Hand small pieces that were collected to the file."""
        if self._small:
            collected, self._small = self._small, bytearray()
            self._put(memoryview(collected))  # nobody else holds it

    def close(self) -> FileRecord:
        """Sync and close; returns size and hash."""
        if self.record is None:
            self.flush()
            began = time.perf_counter()
            os.fsync(self._stream.fileno())
            self.seconds["sync"] = time.perf_counter() - began
            self._wait_for_hashes(0)
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
        self._unhashed.append((self._hasher.submit(self._update, view), len(view)))
        began = time.perf_counter()
        written = 0
        try:
            while written < len(view):
                written += self._stream.write(view[written:])
            self._handed += written
            if self._handed - self._begun >= _BEHIND:
                _begin_writing(self._stream.fileno(), self._begun, self._handed - self._begun)
                self._begun = self._handed
        finally:
            self.seconds["write"] += time.perf_counter() - began

    def _wait_for_hashes(self, held: int) -> None:
        """Wait until at most ``held`` bytes are left to hash."""
        while self._unhashed and sum(length for _, length in self._unhashed) > held:
            self.seconds["hash"] += self._unhashed.popleft()[0].result()

    def _update(self, view: memoryview) -> float:
        began = time.perf_counter()
        self._hash.update(view)
        return time.perf_counter() - began

    def _release(self) -> None:
        self._hasher.shutdown()
        self._stream.close()


def _find_sync_file_range() -> Any:
    """The C library's call, None where there is none."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


_sync_file_range = _find_sync_file_range()


def _begin_writing(descriptor: int, offset: int, length: int) -> None:
    """Ask for the range to be written, without waiting; a refusal costs nothing but time at the sync."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, length, _BEGIN_WRITING)
