"""The probe of the acme platform."""

from __future__ import annotations

from plugrl.platforms.probe import Unavailable


def probe() -> Unavailable:
    """Answer that no device is there."""
    return Unavailable("no acme board in this machine")
