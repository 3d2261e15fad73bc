"""One run at a time in a folder: two would mix their records and remove each other's checkpoints."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from plugrl.errors import UserError


class FolderLock:
    """Holds the folder of a run from the first look at it to the end; use it as a context manager.

    The folder is made if need be, and removed again if it is still empty at the end. The lock is the kernel's and ends
    with the process, however that ends. A file system without locks is trusted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def renew(self) -> None:
        """Hold what stands at the path now: another folder, if the one that stood there was moved away."""
        held = self._descriptor
        assert held is not None
        if self._folder.exists() and os.path.samestat(os.fstat(held), self._folder.stat()):
            return
        self._descriptor = None
        try:
            self._acquire()
        finally:
            os.close(held)

    def __enter__(self) -> FolderLock:
        self._acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            os.rmdir(self._folder)
        except OSError:
            pass  # It holds a run.
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _acquire(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder, os.O_RDONLY)
        except OSError as error:
            raise UserError(f"trainer.default_local_dir: {self._folder} cannot be used: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(
                f"trainer.default_local_dir: another run is at work in {self._folder}. Wait for its end, or give this "
                "one a folder of its own (or another trainer.experiment_name)."
            ) from None
        except OSError:
            pass
        self._descriptor = descriptor


def is_at_work(folder: Path) -> bool:
    """Whether a run holds the folder now."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # A file system without locks is trusted.
    finally:
        os.close(descriptor)
    return False
