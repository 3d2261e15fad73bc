"""A manifest whose import raises."""

from __future__ import annotations

raise RuntimeError("broken on purpose")
