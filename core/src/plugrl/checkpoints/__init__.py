"""Checkpoints that are whole or not there, tied to no layout, and never unpickled. Importing this imports no torch."""

from __future__ import annotations

from typing import Any

from plugrl.checkpoints.manifest import Manifest
from plugrl.checkpoints.store import CheckpointStore, step_name, verify

__all__ = [
    "CheckpointStore",
    "Manifest",
    "flatten_optimizer_state",
    "load_metadata",
    "load_tensors",
    "read_json",
    "save_tensors",
    "step_name",
    "unflatten_optimizer_state",
    "verify",
    "write_json",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from plugrl.checkpoints import tensors

        return getattr(tensors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
