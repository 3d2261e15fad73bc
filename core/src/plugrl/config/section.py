"""What every section of the configuration has in common. Apart from the schema, which is slow to import."""

from __future__ import annotations

import typing
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator, model_validator


class Section(BaseModel):
    """One section of the configuration: frozen, unknown keys refused, the text under each field is its description."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        """A section whose key stands in the file with nothing under it has its defaults."""
        return {} if value is None else value

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false where a number is wanted: pydantic would read them as 1 and 0."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            wanted = {annotation, *typing.get_args(annotation)}
            if wanted & {int, float} and not wanted & {bool, Any}:
                raise ValueError(f"must be a number, not {value}")
        return value


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
"""A list of texts; a single text is a list of one."""
