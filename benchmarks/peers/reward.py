"""A cheap reward that both sides of a comparison use. Imports nothing."""

from __future__ import annotations

from typing import Any


def digit_share(response: str, ground_truth: Any = None, extra_info: Any = None) -> float:
    """Return the share of digits in a response, 0 for an empty one: groups differ in it, so there is a gradient."""
    return sum(character.isdigit() for character in response) / len(response) if response else 0.0
