"""Saving and loading in forms that no layout is tied to: tensors by published name, whole or as blocks of the whole.

``pretrained_model/`` is the policy family's own folder, ``training_state/`` holds what training needs besides; the file
names are in :mod:`plugrl.checkpoints.layout`. Every rank enters a save; who writes what depends on the format alone.
Loading needs no other rank: each reads its own part of what is on disk, whichever layout wrote it.
"""

from __future__ import annotations

from plugrl_engine_fsdp.checkpoint.contents import format_problem, parts_of, weights
from plugrl_engine_fsdp.checkpoint.loading import load
from plugrl_engine_fsdp.checkpoint.saving import Saver

__all__ = ["Saver", "format_problem", "load", "parts_of", "weights"]
