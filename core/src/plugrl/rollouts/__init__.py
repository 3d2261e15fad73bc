"""Rollout backends and how they are found. Importing this imports no torch; the contract is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.rollouts.registry import get_rollout, register_rollout

if TYPE_CHECKING:
    from plugrl.rollouts.base import Completion, RolloutBackend, RolloutPlace, SamplingParams

__all__ = ["Completion", "RolloutBackend", "RolloutPlace", "SamplingParams", "get_rollout", "register_rollout"]
_LAZY = {"Completion", "RolloutBackend", "RolloutPlace", "SamplingParams"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from plugrl.rollouts import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
