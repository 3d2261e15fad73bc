"""The order in which prompts are taken, resumable at any batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from plugrl.errors import CheckpointError, DataError


class PromptSampler:
    """Gives batches of row numbers without end, epoch after epoch.

    Each epoch is a permutation of the rows (or their order) that depends on seed and epoch alone; the rows left over at
    its end, fewer than a batch, are dropped.

    Args:
        num_rows: rows of the data set.
        batch_size: rows in a batch.
        shuffle: a new random order each epoch.
        seed: of these orders.

    Raises:
        DataError: fewer rows than one batch.
    """

    def __init__(self, num_rows: int, batch_size: int, shuffle: bool = True, seed: int = 0) -> None:
        if batch_size < 1 or num_rows < batch_size:
            raise DataError(f"{num_rows} rows do not fill one batch of {batch_size} (data.train_batch_size).")
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self._taken = 0
        self._order = self._permutation(0)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in an epoch."""
        return self.num_rows // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        """Return the row numbers of the next batch; a new epoch begins when this one has no whole batch left."""
        if self._taken + self.batch_size > self.num_rows:
            self.epoch += 1
            self._taken = 0
            self._order = self._permutation(self.epoch)
        batch = self._order[self._taken : self._taken + self.batch_size]
        self._taken += self.batch_size
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position, in plain values."""
        return {
            "epoch": self.epoch,
            "taken": self._taken,
            "num_rows": self.num_rows,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken; another batch size goes on from the same row.

        Raises:
            CheckpointError: the state is of other data or of another order.
        """
        for name in ("num_rows", "shuffle", "seed"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"trainer.resume: the position in the data cannot be resumed: {name} was {state[name]} when it was "
                    f"saved and is {getattr(self, name)} now."
                )
        self.epoch, self._taken = int(state["epoch"]), int(state["taken"])
        self._order = self._permutation(self.epoch)

    def _permutation(self, epoch: int) -> list[int]:
        order = list(range(self.num_rows))
        if self.shuffle:
            random.Random(f"prompts-{self.seed}-{epoch}").shuffle(order)
        return order
