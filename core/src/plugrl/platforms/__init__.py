"""Platforms: what kind of accelerator there is, and how torch, Ray and collectives reach it. Imports no torch."""

from __future__ import annotations

from plugrl.platforms.base import PlatformBase
from plugrl.platforms.probe import Available, Unavailable
from plugrl.platforms.registry import PlatformRegistry
from plugrl.platforms.selection import Selection, get_platform, reset, select, set_platform, use_platform

__all__ = [
    "Available",
    "PlatformBase",
    "PlatformRegistry",
    "Selection",
    "Unavailable",
    "get_platform",
    "reset",
    "select",
    "set_platform",
    "use_platform",
]
