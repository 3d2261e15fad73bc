"""Claims a name of the core, and is the first to touch the registry of platforms: that must do no harm."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, PlatformEntry, Plugin

plugin = Plugin(
    name="claims_built_in",
    api=PLUGIN_API,
    requires_core=">=0.1,<1",
    summary="a platform with the name of a built-in one",
    platforms=(
        PlatformEntry(
            name="cpu", vendor="acme", device="cpu", probe="claims_built_in:probe", target="claims_built_in:P"
        ),
    ),
)
