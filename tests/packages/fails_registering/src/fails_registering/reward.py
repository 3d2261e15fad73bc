"""What the entry points at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def reward(text: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    """Return zero."""
    return 0.0
