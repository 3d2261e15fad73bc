"""Training engines and how they are found. Importing this imports no torch; the contract is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.engines.registry import EngineRegistry

if TYPE_CHECKING:
    from plugrl.engines.base import BaseEngine, BatchOptions, BatchResult, LossContext

__all__ = ["BaseEngine", "BatchOptions", "BatchResult", "EngineRegistry", "LossContext"]
_LAZY = {"BaseEngine", "BatchOptions", "BatchResult", "LossContext"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from plugrl.engines import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
