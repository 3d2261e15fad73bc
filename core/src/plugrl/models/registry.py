"""The registry of model types. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugrl.errors import ConfigError, ModelNotFound, PluginError
from plugrl.plugins.entries import MODEL_CATEGORIES as CATEGORIES
from plugrl.registry import Registry

if TYPE_CHECKING:
    import torch

Builder = Callable[[Any, "torch.dtype | None"], Any]


def check_model(key: Any, value: Any) -> None:
    """Raise PluginError unless ``value`` can be called to build a policy."""
    if not callable(value):
        raise PluginError(f'Model "{key}" must be a builder (cfg, torch_dtype), got {value!r}.')


MODELS: Registry[Builder] = Registry("model", check=check_model, not_found=ModelNotFound)
"""Meta of an entry: ``category``; ``schema`` and ``processor``, each a target, an object or None."""


def register_model(
    model_type: str,
    builder: Builder,
    category: str = "language",
    force: bool = False,
    *,
    schema: Any = None,
    processor: Any = None,
    summary: str = "",
) -> None:
    """Register ``builder(cfg, torch_dtype)``, so that ``model_type`` passes validation and ``get_model`` builds it.

    ``schema`` is the pydantic model of its configuration, ``processor`` a callable ``(cfg) -> TextProcessor``.
    Raises ConfigError for an unknown category, DuplicateRegistration unless ``force``.
    """
    if category not in CATEGORIES:
        raise ConfigError(f'Model "{model_type}" has category {category!r}; known: {", ".join(CATEGORIES)}.')
    meta = {"category": category, "schema": schema, "processor": processor}
    MODELS.register(model_type, builder, force=force, summary=summary, meta=meta)


def model_category(model_type: str) -> str:
    """Return the category of a registered model type. Raises ModelNotFound."""
    return str(MODELS.entry(model_type).meta.get("category") or CATEGORIES[0])
