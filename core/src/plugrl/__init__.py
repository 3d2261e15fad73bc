"""PlugRL: reinforcement-learning post-training where everything specific is a plugin."""

from __future__ import annotations

__version__ = "0.1.0"
