"""An extension module that registers something and then fails."""

from __future__ import annotations

from plugrl.rewards.registry import REWARDS


def register() -> None:
    """Register a reward, then raise."""
    REWARDS.register("left_by_extension", lambda text, ground_truth, extra_info: 0.0)
    raise RuntimeError("the extension failed on purpose")
