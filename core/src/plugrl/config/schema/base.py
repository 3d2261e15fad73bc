"""What every section of the configuration has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator


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


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
"""A list of texts; a single text is a list of one."""
