"""The batches of one worker, read ahead of their use."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from plugrl.data.plan import DataPlan, Position
from plugrl.data.samples import Samples

if TYPE_CHECKING:
    from torch import Tensor


class Feed:
    """Reads the batch of a position, and the following ``ahead`` of them meanwhile in a thread.

    What is read depends on the plan alone, so reading ahead changes nothing, and what was read ahead but not used does
    not count.
    """

    def __init__(self, plan: DataPlan, samples: Samples, rank: int, ahead: int = 1) -> None:
        self.plan = plan
        self._samples = samples
        self._rank = rank
        self._ahead = ahead
        self._pending: dict[tuple[int, int], Future[dict[str, Tensor]]] = {}
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="samples") if ahead else None

    def batch(self, position: Position) -> dict[str, Tensor]:
        """Return this worker's batch of the step that begins at ``position``. Raises what reading it raised."""
        position = self.plan.settle(position)
        ready = self._pending.pop((position.epoch, position.offset), None)
        if ready is None:
            self._forget()  # the run went somewhere else
        following = position
        for _ in range(self._ahead):
            following = self.plan.after(following)
            key = (following.epoch, following.offset)
            if self._reader is not None and key not in self._pending:
                self._pending[key] = self._reader.submit(self._read, following)
        return self._read(position) if ready is None else ready.result()

    def _read(self, position: Position) -> dict[str, Tensor]:
        return self._samples.batch(self.plan.rows(position, self._rank))

    def _forget(self) -> None:
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()

    def close(self) -> None:
        """Stop reading."""
        self._forget()
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
