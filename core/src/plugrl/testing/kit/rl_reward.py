"""A reward with signal from the first step on, whatever a policy that learned nothing says. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def even_digits(text: str, ground_truth: str, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of even digits among four characters as the score."""
    return {"score": sum(character in "02468" for character in text) / 4, "acc": 0.0, "parsed": True}
