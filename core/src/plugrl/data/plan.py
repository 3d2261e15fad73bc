"""Which samples each worker sees at each step: one pure function, so that a resumed run sees what it would have seen.

With n samples and ``G = batch_size * world_size`` an epoch is a permutation of the samples that depends on seed and
epoch alone. Each step hands out the next G of it, rank r the r-th ``batch_size`` of these. What is missing at the end
of an epoch is filled from the start of the same permutation, or dropped with ``drop_last``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy

from plugrl.errors import CheckpointError, DataError

_KEPT_ORDERS = 2
"""Permutations kept: prefetching reads the next epoch while this one ends."""


@dataclass(frozen=True)
class Position:
    """Where a run stands in its data: ``offset`` samples of ``epoch`` are handed out, ``samples_seen`` in all."""

    epoch: int = 0
    offset: int = 0
    samples_seen: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return plain values for a checkpoint."""
        return {"epoch": self.epoch, "offset": self.offset, "samples_seen": self.samples_seen}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Position:
        """Read what :meth:`as_dict` gave. Raises CheckpointError when a key is missing or no count."""
        try:
            numbers = [int(values[name]) for name in ("epoch", "offset", "samples_seen")]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"trainer.resume: the position in the data is not readable: {values!r}.") from error
        if min(numbers) < 0:
            raise CheckpointError(f"trainer.resume: the position in the data has a negative count: {values!r}.")
        return Position(*numbers)


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """The order of ``num_samples`` samples over ``world_size`` workers that take ``batch_size`` each at every step.

    Raises DataError when there is no sample, or with ``drop_last`` fewer than one step takes.
    """

    num_samples: int
    batch_size: int
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    _orders: dict[int, Sequence[int]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.world_size < 1:
            raise ValueError(f"batch_size and world_size are at least 1, got {self.batch_size} and {self.world_size}.")
        if self.num_samples < 1:
            raise DataError("The data set has no sample to train on.")
        if self.drop_last and self.num_samples < self.global_batch_size:
            raise DataError(
                f"{self.num_samples} samples do not fill one step of {self.global_batch_size} (sft.drop_last=true)."
            )

    @property
    def global_batch_size(self) -> int:
        """Samples that all workers take together at one step."""
        return self.batch_size * self.world_size

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch that is entered at its start."""
        whole, rest = divmod(self.num_samples, self.global_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def order(self, epoch: int) -> Sequence[int]:
        """Return the permutation of all samples in ``epoch``; no global random state takes part."""
        if epoch not in self._orders:
            while len(self._orders) >= _KEPT_ORDERS:
                del self._orders[min(self._orders)]
            if self.shuffle:
                generator = numpy.random.Generator(numpy.random.PCG64(numpy.random.SeedSequence([self.seed, epoch])))
                self._orders[epoch] = cast(Sequence[int], generator.permutation(self.num_samples))
            else:
                self._orders[epoch] = range(self.num_samples)
        return self._orders[epoch]

    def settle(self, position: Position) -> Position:
        """Return where the next step really begins: at the next epoch when this one has too little left."""
        left = self.num_samples - position.offset
        if left <= 0 or (self.drop_last and left < self.global_batch_size):
            return Position(position.epoch + 1, 0, position.samples_seen)
        return position

    def rows(self, position: Position, rank: int) -> list[int]:
        """Return the ``batch_size`` samples that worker ``rank`` takes at the step beginning at ``position``."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"There is no rank {rank} among {self.world_size}.")
        start = self.settle(position)
        order, first = self.order(start.epoch), start.offset + rank * self.batch_size
        return [int(order[index % self.num_samples]) for index in range(first, first + self.batch_size)]

    def after(self, position: Position) -> Position:
        """Return the position once the step beginning at ``position`` is done."""
        start = self.settle(position)
        offset = start.offset + self.global_batch_size
        seen = start.samples_seen + self.global_batch_size
        return self.settle(Position(start.epoch, min(offset, self.num_samples), seen))

    def at_step(self, step: int) -> Position:
        """Return the position after ``step`` steps of a run that began at the start with these very sizes."""
        epoch, within = divmod(step, self.steps_per_epoch)
        offset = min(within * self.global_batch_size, self.num_samples)
        return Position(epoch, offset, step * self.global_batch_size)


def held_out_rows(num_samples: int, rank: int, world_size: int) -> list[int]:
    """Return the held-out samples of a worker: every sample belongs to exactly one, so that none counts twice."""
    return list(range(rank, num_samples, world_size))
