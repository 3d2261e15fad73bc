"""Vectorised environments and how they are found. Importing this imports no torch; the contract is loaded on use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.envs.registry import get_env, register_env

if TYPE_CHECKING:
    from plugrl.envs.base import StepResult, VecEnv

__all__ = ["StepResult", "VecEnv", "get_env", "register_env"]
_LAZY = {"StepResult", "VecEnv"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from plugrl.envs import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
