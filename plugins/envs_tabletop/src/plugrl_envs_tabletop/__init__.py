"""A vectorised NumPy tabletop: reach, push, pick and place, seen by cameras and asked for in words."""

from __future__ import annotations
