"""A checkpoint that is completed in the background: its failure surfaces at the next look, and every wait ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from plugrl.errors import CheckpointError, one_line

logger = logging.getLogger(__name__)


class BackgroundCommit:
    """Runs ``complete`` in a thread. One at a time: the store waits for the one before."""

    def __init__(self, step: int, complete: Callable[[], None]) -> None:
        self.step = step
        self.error: Exception | None = None
        self._complete = complete
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._complete()
        except Exception as error:  # the border of the thread: whatever it is, the trainer must hear of it
            self.error = error
            logger.error("The checkpoint of step %d failed: %s", self.step, one_line(error))

    @property
    def running(self) -> bool:
        """Whether it is not done yet."""
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end. Raises CheckpointError when it failed or does not end in time."""
        self._thread.join(timeout_s)
        if self.running:
            raise CheckpointError(f"The checkpoint of step {self.step} was not complete after {timeout_s:.0f} s.")
        self.raise_error()

    def raise_error(self) -> None:
        """Raise CheckpointError if it failed."""
        if self.error is not None:
            raise CheckpointError(f"The checkpoint of step {self.step} failed: {one_line(self.error)}") from self.error
