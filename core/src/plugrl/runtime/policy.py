"""What becomes of a worker group when one of its ranks fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Restart:
    """Start ranks that died or froze anew, ``times`` in all; a method that raises is still an error."""

    times: int

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"restart({self.times}): give the number of restarts that are allowed, 1 or more.")


OnError = Literal["raise", "return"] | Restart


def restart(times: int) -> Restart:
    """Return the policy that starts ranks which died or froze anew, ``times`` in all, then raises.

    For workers without a process group, whose methods may run twice: the calls of a rank that was lost are repeated.
    """
    return Restart(times)
