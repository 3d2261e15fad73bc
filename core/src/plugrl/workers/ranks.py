"""All ranks of supervised training as one object, whoever started their processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from plugrl.data.plan import Position

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup


class Ranks(Protocol):
    """Processes with a :class:`plugrl.workers.supervised.SupervisedWorker` each."""

    size: int

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method on every rank and return what rank 0's gave. Raises the error of a rank that failed."""

    def settle(self) -> None:
        """Say that the call before was one in which all ranks took part together."""

    def close(self) -> None:
        """End what is called, as far as it belongs to these ranks alone."""


class RayRanks:
    """Ranks that are the workers of a Ray group. The group is closed by whoever launched it."""

    def __init__(self, group: WorkerGroup, timeout: float) -> None:
        self._group = group
        self._timeout = timeout
        self.size = group.size

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method on every rank and return what rank 0's gave."""
        return self._group.execute(method, **arguments).wait(self._timeout)[0]

    def settle(self) -> None:
        """Do nothing: Ray forgets calls by itself."""

    def close(self) -> None:
        """Do nothing."""


class SupervisedGroup:
    """What the loop of supervised training asks of its ranks, see :mod:`plugrl.workers.supervised`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.size = ranks.size

    def describe(self) -> dict[str, Any]:
        """Return counts of samples, parameters and workers."""
        facts: dict[str, Any] = self._ranks.call("describe")
        return facts

    def step(self, position: Position, window: int, window_index: int) -> dict[str, float]:
        """Do one loop step; returns the metrics over all ranks."""
        metrics: dict[str, float] = self._ranks.call(
            "step", position=position.as_dict(), window=window, window_index=window_index
        )
        self._ranks.settle()
        return metrics

    def measure(self) -> dict[str, float]:
        """Return the loss on held-out samples, empty without any."""
        metrics: dict[str, float] = self._ranks.call("measure")
        return metrics

    def write(
        self, directory: Path, step: int, progress: Mapping[str, Any], train_config: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint into ``directory``."""
        self._ranks.call(
            "write", directory=str(directory), step=step, progress=dict(progress), train_config=dict(train_config)
        )

    def restore(self, directory: Path, progress: Mapping[str, Any]) -> None:
        """Go on from what :meth:`write` wrote, perhaps with another number of ranks."""
        self._ranks.call("restore", directory=str(directory), progress=dict(progress))

    def check_folder(self, probe: Path) -> None:
        """Raise CheckpointError unless every rank sees ``probe``."""
        self._ranks.call("check_folder", probe=str(probe))

    def close(self) -> None:
        """Let the ranks go."""
        self._ranks.close()
