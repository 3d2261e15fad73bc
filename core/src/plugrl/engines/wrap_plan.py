"""What an engine tells of the units into which it would cut a model, before it does."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = ("path", "unit", "parameters", "precision", "reason")


@dataclass(frozen=True, kw_only=True)
class WrapPlanTable:
    """A wrap plan to be read: a row of :data:`COLUMNS` for each unit, and remarks on the whole.

    notices: what was done that nobody asked for. warnings: what may go wrong.
    """

    rows: tuple[tuple[str, str, str, str, str], ...]
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
