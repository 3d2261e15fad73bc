"""A collective under way. Its results reach the device when somebody waits for them, and not before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NO_TIMEOUT = timedelta(0)


class VcclWork(dist.Work):
    """Waits once for the transport, then copies results to the device.

    Later waits return at once: the transport's own work must not be waited for twice, since a second wait for a
    receive never ends.
    """

    def __init__(
        self,
        label: str,
        parts: Sequence[dist.Work],
        land: Callable[[], None],
        results: list[torch.Tensor],
    ) -> None:
        super().__init__()
        self._label = label
        self._parts = list(parts)
        self._land = land
        self._results = results
        self._lock = threading.RLock()
        self._done = False
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return once the results are on the device. Raises DistBackendError when the collective failed or timed out.

        ``timeout`` 0 means that of the process group.
        """
        with self._lock:
            if not self._done:
                self._finish(timeout)
            if self._error is not None:
                raise dist.DistBackendError(f"{self._label}: {self._error}") from self._error
        return True

    def _finish(self, timeout: timedelta) -> None:
        try:
            for part in self._parts:
                # Without an argument the transport takes the group's deadline.
                part.wait() if timeout == NO_TIMEOUT else part.wait(timeout)
            self._land()
        except RuntimeError as error:
            self._error = error
        finally:
            self._done = True
            self._parts = []

    def is_completed(self) -> bool:
        """Whether the results are on the device, or the collective failed."""
        with self._lock:
            if not self._done and all(part.is_completed() for part in self._parts):
                self._finish(NO_TIMEOUT)
            return self._done

    def is_success(self) -> bool:
        """Whether it is over, and well."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong, None as long as nothing did."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Wait, and return the tensors that were written."""
        self.wait()
        return self._results

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def block_current_stream(self) -> None:
        """Wait: streams of this device run on the host."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Wait, and return a future that is done; its value is the tensors that were written."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        try:
            self.wait()
        except dist.DistBackendError as error:
            future.set_exception(error)
        else:
            future.set_result(self._results)
        return future
