"""The response must equal the ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def reward(
    text: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    score: float = 1.0,
    strip: bool = True,
    ignore_case: bool = False,
) -> dict[str, Any]:
    """Judge one response; registered as the reward ``exact_match``.

    ``strip`` ignores white space around both, ``ignore_case`` upper and lower case. Returns ``score`` (the given one or
    0), ``acc`` and ``parsed`` (1.0 where the response is not empty), and ``pred``, what was compared.
    """
    given, truth = str(text), str(ground_truth)
    if strip:
        given, truth = given.strip(), truth.strip()
    if ignore_case:
        given, truth = given.casefold(), truth.casefold()
    right = given == truth
    return {"score": score if right else 0.0, "acc": float(right), "parsed": float(bool(given)), "pred": given}
