"""What a probe answers: a cheap question to the machine that never initialises a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Available:
    """The platform can be used here: ``count`` devices (0 when unknown), and what was seen."""

    count: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Unavailable:
    """The platform cannot be used here, and why: ``"no device visible (the mask is empty)"``."""

    reason: str


ProbeResult = Available | Unavailable


@dataclass(frozen=True, kw_only=True)
class ProbeRecord:
    """The answer of one platform's probe, kept for the doctor.

    reason: detail or why not. traceback: of a probe that raised, which counts as unavailable.
    """

    platform: str
    priority: int
    available: bool
    count: int = 0
    reason: str = ""
    traceback: str | None = None


def always() -> ProbeResult:
    """Answer that the platform can be used: the built-in one's probe."""
    return Available(detail="always there")
