"""An entry point that names something else than a manifest."""

from __future__ import annotations

plugin = {"name": "not_a_plugin"}
