"""What every section of the schema has in common; see :mod:`plugrl.config.section`."""

from __future__ import annotations

from plugrl.config.section import Names, Section

__all__ = ["Names", "Section"]
