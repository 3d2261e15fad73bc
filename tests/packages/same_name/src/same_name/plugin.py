"""A manifest whose plugin name another distribution has already."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin

plugin = Plugin(
    name="good_plugin",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
    ),
)
