"""A manifest that is slow to import."""

from __future__ import annotations

import time

from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry

time.sleep(0.4)

plugin = Plugin(
    name="slow_import",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="slow", target="slow_import.reward:reward"),
    ),
)
