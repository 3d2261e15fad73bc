"""What the entries point at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def length(text: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> float:
    """Return the number of characters of the answer."""
    return float(len(text))
