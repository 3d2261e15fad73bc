"""Model types and the policies they build. Importing this imports no torch; ``BasePolicy`` is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugrl.models.factory import get_model, get_processor
from plugrl.models.processor import TextProcessor
from plugrl.models.registry import MODELS, register_model

if TYPE_CHECKING:
    from plugrl.models.base import BasePolicy

__all__ = ["MODELS", "BasePolicy", "TextProcessor", "get_model", "get_processor", "register_model"]


def __getattr__(name: str) -> Any:
    if name == "BasePolicy":
        from plugrl.models.base import BasePolicy

        return BasePolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
