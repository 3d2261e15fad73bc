"""An extension module: what RLINF_EXT_MODULE may name."""

from __future__ import annotations

from plugrl.rewards.registry import REWARDS

registered = 0


def register() -> None:
    """Register one reward and count the calls."""
    global registered
    registered += 1
    REWARDS.register("from_extension", lambda text, ground_truth, extra_info: 0.0)
