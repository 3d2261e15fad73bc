"""A probe that prints too."""

from __future__ import annotations

from plugrl.platforms.probe import Unavailable


class Noisy:
    """What the entry names; nothing loads it."""


def probe() -> Unavailable:
    """Print and answer that no device is there."""
    print("noisy: looking for a board")
    return Unavailable("no board")
