"""Schemas extended at run time by what plugins bring, in a form that travels to workers.

A composed class exists only in the process that made it, so an instance is pickled as the recipe of its class (the base
and the added fields, all importable) and its values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, cast

from pydantic import BaseModel, Field, create_model

from plugrl.config.schema.base import Section

Fields = tuple[tuple[str, Any], ...]
"""Names of the added or replaced fields, each with its type."""


@lru_cache(maxsize=64)
def compose(base: type[Section], fields: Fields) -> type[Section]:
    """Return a subclass of ``base`` with further sections; the same recipe gives the same class."""
    if not fields:
        return base
    definitions: dict[str, Any] = {}
    for name, annotation in fields:
        known = base.model_fields.get(name)
        description = known.description if known else (annotation.__doc__ or "").strip().split("\n")[0] or None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not _optional(known):
            if _has_required(annotation):
                definitions[name] = (annotation | None, Field(None, description=description))
            else:
                definitions[name] = (annotation, Field(default_factory=annotation, description=description))
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            definitions[name] = (annotation | None, Field(None, description=description))
        else:
            definitions[name] = (annotation, Field(default_factory=dict, description=description))
    composed: Any = cast(Any, create_model)(
        base.__name__, __base__=(_Composed, base), __module__=base.__module__, **definitions
    )
    composed._recipe = (base, fields)
    composed.__doc__ = base.__doc__
    return cast(type[Section], composed)


def _optional(known: Any) -> bool:
    return known is not None and known.default is None


def _has_required(schema: type[BaseModel]) -> bool:
    return any(info.is_required() for info in schema.model_fields.values())


class _Composed(Section):
    """What composed classes have in common: the recipe by which they are pickled."""

    _recipe: ClassVar[tuple[type[Section], Fields]]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (recipe(type(self)), dict(self.__dict__), set(self.model_fields_set))


def recipe(kind: Any) -> Any:
    """Return what a class is made of: itself when it can be imported, else its base and fields."""
    if isinstance(kind, type) and issubclass(kind, _Composed):
        base, fields = kind._recipe
        return base, tuple((name, recipe(annotation)) for name, annotation in fields)
    return kind


def from_recipe(made_of: Any) -> Any:
    """Return the class of a recipe."""
    if isinstance(made_of, tuple):
        base, fields = made_of
        return compose(base, tuple((name, from_recipe(part)) for name, part in fields))
    return made_of


def _restore(made_of: Any, values: dict[str, Any], fields_set: set[str]) -> Any:
    return from_recipe(made_of).model_construct(_fields_set=fields_set, **values)
