"""Hooks with an argument that the hook does not have."""

from __future__ import annotations

from typing import Any

from plugrl.plugins import hookimpl


@hookimpl
def on_worker_start(context: Any, gpu: int) -> None:
    """Take an argument that nobody passes."""
