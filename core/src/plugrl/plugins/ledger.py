"""What became of every plugin in this process."""

from __future__ import annotations

from collections.abc import Hashable


def failures_for(kind: str, key: Hashable) -> list[str]:
    """Return one sentence per plugin that failed and would provide ``key``."""
    return []
