"""Bodies that fail in other ways than by a finding."""

from __future__ import annotations

import os


def fail(rank: int, world: int) -> list[str]:
    """Raise on one rank."""
    if rank:
        raise ValueError("the driver is gone")
    return []


def die(rank: int, world: int) -> list[str]:
    """End one process."""
    if rank:
        print("the last word", flush=True)
        os._exit(3)
    return []
