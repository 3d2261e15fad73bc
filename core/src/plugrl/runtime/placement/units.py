"""What one unit of hardware looks like in a configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class HardwareUnit(BaseModel):
    """One unit, as ``hardware.configs`` describes it: derive from it and add the keys of the type."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    node_rank: int = Field(ge=0)
    """The node that the unit is attached to."""


class VirtualUnit(HardwareUnit):
    """A unit that exists by configuration alone: it tries a placement out before the hardware is there."""

    name: str = ""
    """What it stands for."""
