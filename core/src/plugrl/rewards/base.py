"""The contract of a reward: a function of the response, the ground truth and what else is known of the row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from plugrl.errors import UserError

RewardFunction: TypeAlias = Callable[..., float | Mapping[str, Any]]
"""``(response_text, ground_truth, extra_info, **options) -> score | {"score": ..., "acc": ..., "parsed": ...}``."""


@dataclass(frozen=True)
class RewardResult:
    """The score of one response and what the function said beside it, such as ``acc`` and ``parsed``."""

    score: float
    info: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(raw: float | Mapping[str, Any], reward: str) -> RewardResult:
        """Read what the function named ``reward`` returned; 0-d arrays and tensors become plain numbers.

        Raises UserError unless there is a finite score in it, and a number as ``acc`` if there is one.
        """
        info = {key: _plain(value) for key, value in raw.items()} if isinstance(raw, Mapping) else {}
        score = info.pop("score", None) if isinstance(raw, Mapping) else _plain(raw)
        # One score that is not finite would make every advantage of its group, and with it the gradient, NaN.
        if not (_is_finite(score) and _is_finite(info.get("acc", 0.0))):
            raise UserError(
                f"Reward {reward!r} returned {raw!r}; expected a finite number, or a mapping with one as 'score' and, "
                "if it is there, one as 'acc'."
            )
        return RewardResult(float(score), info)


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _plain(value: Any) -> Any:
    """Return the number in a 0-d array or tensor, anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
