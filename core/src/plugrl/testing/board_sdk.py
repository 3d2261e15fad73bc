"""The stand-in for a vendor's SDK: like those, it reads the mask once, when it is loaded, and never looks again."""

from __future__ import annotations

import os

installed = int(os.environ.get("BOARD_COUNT", "8"))
"""Boards of the machine."""

mask = os.environ.get("BOARD_VISIBLE_DEVICES")
"""The mask that was in force when this module was loaded."""

visible = [entry.strip() for entry in mask.split(",") if entry.strip()] if mask is not None else range(installed)
"""The boards that processes with that mask may use."""
