"""Which workers of the run are lost, as the driver has announced it: for waits that no connection ends.

A wait for somebody who has not connected yet, or whose messages a third process carries, cannot see that he is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plugrl.runtime.directory import Directory

LOSSES = "losses"
"""Name of the list of lost workers in the directory: [group, generation, rank, reason] of each."""
_directory: Directory | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a worker group, as others than the driver know it."""

    group: str
    generation: int


def use_directory(directory: Directory | None) -> None:
    """Say where this process learns of losses; None where it takes part in no run."""
    global _directory
    _directory = directory


def announced(directory: Directory) -> Iterator[tuple[Launch, int, str]]:
    """Give launch, rank and reason of every worker that the driver has missed."""
    for group, generation, rank, reason in directory.find(LOSSES) or ():
        yield Launch(group=group, generation=generation), rank, reason


def loss_of(launch: Launch, rank: int) -> str:
    """Say why a worker will not come, empty as long as it may: it is gone or frozen, or its group was closed."""
    if _directory is None:
        return ""
    for other, lost, reason in announced(_directory):
        if (other, lost) == (launch, rank):
            return reason
    current = _directory.find(f"group/{launch.group}")
    if current is None or current["generation"] != launch.generation:
        return f"Worker group {launch.group!r} was closed."
    return ""
