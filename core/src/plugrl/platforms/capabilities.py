"""What a platform can declare and the conformance kit can show: ids, what they mean, and the level that checks each."""

from __future__ import annotations

from plugrl.plugins.capabilities import (
    CAPABILITIES_BY_LEVEL,
    LEVELS,
    PLATFORM_CAPABILITIES,
    bad_capabilities,
    level_of,
)

__all__ = ["CAPABILITIES_BY_LEVEL", "LEVELS", "PLATFORM_CAPABILITIES", "bad_capabilities", "level_of"]
