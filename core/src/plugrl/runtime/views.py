"""Some ranks of a worker group, called without the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.runtime.deadline import DEFAULT, Timeout

if TYPE_CHECKING:
    from plugrl.runtime.group import WorkerGroup
    from plugrl.runtime.handle import Handle
    from plugrl.runtime.stream import Stream


@dataclass(frozen=True)
class RanksView:
    """A worker group whose calls go to the given ranks; it has no state of its own, so threads may use different ones.

    Results come in the order of ``ranks``.
    """

    group: WorkerGroup
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks in the view."""
        return len(self.ranks)

    def execute(
        self,
        method: str,
        *args: Any,
        per_rank: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
        **kwargs: Any,
    ) -> Handle[list[Any]]:
        """See :meth:`plugrl.runtime.WorkerGroup.execute`."""
        return self.group.execute(method, *args, ranks=self.ranks, per_rank=per_rank, **kwargs)

    def stream(
        self,
        method: str,
        *args: Any,
        per_rank: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] | None = None,
        timeout: Timeout = DEFAULT,
        **kwargs: Any,
    ) -> Stream:
        """See :meth:`plugrl.runtime.WorkerGroup.stream`."""
        return self.group.stream(method, *args, ranks=self.ranks, per_rank=per_rank, timeout=timeout, **kwargs)
