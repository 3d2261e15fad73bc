"""Model types and the policies they build. Importing this imports no torch; what needs more is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plugrl.models.processor import TextProcessor
from plugrl.models.registry import MODELS, register_model

if TYPE_CHECKING:
    from plugrl.models.base import BasePolicy
    from plugrl.models.factory import get_model, get_processor

__all__ = ["MODELS", "BasePolicy", "TextProcessor", "get_model", "get_processor", "register_model"]
_LAZY = {"BasePolicy": "base", "get_model": "factory", "get_processor": "factory"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
