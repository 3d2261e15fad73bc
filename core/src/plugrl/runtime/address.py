"""The name of a worker: its group and its rank."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.errors import UserError


@dataclass(frozen=True, order=True)
class WorkerAddress:
    """A rank of a worker group, written ``group:rank``; it stays the same when the group is launched again."""

    group: str
    rank: int

    @property
    def name(self) -> str:
        """The address as text."""
        return f"{self.group}:{self.rank}"

    @classmethod
    def from_name(cls, name: str) -> WorkerAddress:
        """Read ``group:rank``; raises UserError for any other text."""
        group, _, rank = name.partition(":")
        if not group or not rank.isdecimal():
            raise UserError(f"{name!r} is no address of a worker: write group:rank, such as actor:0.")
        return cls(group, int(rank))

    def __str__(self) -> str:
        return self.name
