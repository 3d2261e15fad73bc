"""The plugin mechanism: manifests, their loading, and what became of each."""

from __future__ import annotations
