"""The contract of a reward: a function of the response, the ground truth and what else is known of the row."""

from __future__ import annotations

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
        """Read what the function named ``reward`` returned. Raises UserError when there is no numeric score in it."""
        info = dict(raw) if isinstance(raw, Mapping) else {}
        score = info.pop("score", None) if isinstance(raw, Mapping) else raw
        try:
            return RewardResult(float(score), info)
        except (TypeError, ValueError):
            raise UserError(
                f"Reward {reward!r} returned {raw!r}; expected a number or a mapping with a numeric 'score'."
            ) from None
