"""Sampling ahead of training: a thread draws the samples of later steps while the actor learns from earlier ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plugrl.errors import CallCancelled, RuntimeTimeout
from plugrl.runners.experience import Experience
from plugrl.runners.prompts import PromptBatch, PromptData
from plugrl.runtime.cancellation import Cancellation, raise_if_cancelled

_TICK_S = 0.25
_JOIN_S = 5.0

Generate = Callable[[PromptBatch, int, int], Experience]
"""Draws the responses to some prompts of a batch, given by their range; holds the rollout while it does."""


@dataclass
class Drawn:
    """The samples of a step.

    pieces: ``(start, stop, rows)`` of the batch. sampler_state, epoch: where the data stood when this batch, and none
    after it, had been drawn: what a checkpoint of the step records. seconds: time that drawing took.
    """

    step: int
    batch: PromptBatch
    sampler_state: dict[str, Any]
    epoch: int
    pieces: list[tuple[int, int, Experience]] = field(default_factory=list)
    seconds: float = 0.0


class Ahead:
    """Draws the samples of the steps ``first`` to ``last``, in order, as early as the bound of staleness allows.

    The samples of step s are used by weights of version s - 1. A portion of them is drawn when the rollout has weights
    of version s - 1 - ``max_staleness`` or newer, so never more than that many steps are waiting either.
    """

    def __init__(
        self,
        data: PromptData,
        generate: Generate,
        version: Callable[[], int],
        *,
        first: int,
        last: int,
        chunk: int,
        max_staleness: int,
    ) -> None:
        self._data = data
        self._generate = generate
        self._version = version
        self._steps = range(first, last + 1)
        self._chunk = chunk
        self._max_staleness = max_staleness
        self._changed = threading.Condition()
        self._ready: dict[int, Drawn] = {}
        self._error: BaseException | None = None
        self._cancellation = Cancellation()
        self._thread = threading.Thread(target=self._draw_all, name="flow-ahead", daemon=True)
        self._thread.start()

    def take(self, step: int, timeout: float | None = None) -> Drawn:
        """Wait for the samples of a step and return them, once. Raises what drawing them raised, or RuntimeTimeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while step not in self._ready:
                if self._error is not None:
                    raise self._error
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeTimeout(f"The samples of step {step} were not drawn within {timeout:g} s.")
                self._changed.wait(_TICK_S if left is None else min(left, _TICK_S))
            return self._ready.pop(step)

    def weights_changed(self) -> None:
        """Say that the rollout has new weights."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End drawing, at the next portion; what was drawn and not taken is dropped."""
        self._cancellation.cancel("Training ended.")
        self.weights_changed()
        self._thread.join(_JOIN_S)

    # ----------------------------------------------------------------- the thread
    def _draw_all(self) -> None:
        try:
            with self._cancellation.scope():
                for step in self._steps:
                    drawn = self._draw(step)
                    with self._changed:
                        self._ready[step] = drawn
                        self._changed.notify_all()
        except BaseException as error:  # A thread has nobody above it: who takes the samples raises this.
            if isinstance(error, CallCancelled) and self._cancellation.cancelled:
                return
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _draw(self, step: int) -> Drawn:
        self._wait_for_weights(step)
        batch = self._data.next_batch(step)
        drawn = Drawn(step, batch, self._data.sampler.state_dict(), self._data.sampler.epoch)
        for start in range(0, len(batch.prompts), self._chunk):
            stop = min(start + self._chunk, len(batch.prompts))
            began = time.perf_counter()
            drawn.pieces.append((start, stop, self._generate(batch, start, stop)))
            drawn.seconds += time.perf_counter() - began
        return drawn

    def _wait_for_weights(self, step: int) -> None:
        """Wait until the weights are new enough: that takes as long as training, which has deadlines of its own."""
        with self._changed:
            while self._version() < step - 1 - self._max_staleness:
                raise_if_cancelled()
                self._changed.wait(_TICK_S)
            raise_if_cancelled()
