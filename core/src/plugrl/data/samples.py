"""Data sets whose samples are tensors already: what a reader gives and a training worker takes. Importing is light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Samples(Protocol):
    """Samples by number. Reading one draws from no global random state, and may happen in another thread."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Return the samples ``rows`` as row-aligned tensors ``[B, ...]`` on the CPU.

        Raises DataError naming the file that cannot be read.
        """


@dataclass(frozen=True, kw_only=True)
class SampleSplits:
    """A data set of tensors.

    train, val: samples to train on and held-out ones; ``val`` may be None.
    features: ``{name: {"type": STATE | ACTION | VISUAL | ENV, "shape": [...]}}`` of what a policy may see or give.
    statistics: ``{feature: {"mean" | "std" | "min" | "max": tensor}}``, from which a fresh run's processors are made.
    """

    train: Samples
    val: Samples | None = None
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
