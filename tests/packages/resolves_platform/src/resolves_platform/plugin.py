"""A manifest that asks for the platform, which must wait until all plugins are loaded."""

from __future__ import annotations

from plugrl.platforms import get_platform
from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry

device = get_platform().device_name

plugin = Plugin(
    name="resolves_platform",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="on_device", target="resolves_platform.reward:reward"),
    ),
)
