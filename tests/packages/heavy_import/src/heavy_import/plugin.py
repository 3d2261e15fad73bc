"""A manifest that imports a large library."""

from __future__ import annotations

import numpy

from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry

plugin = Plugin(
    name="heavy_import",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="heavy", target="heavy_import.reward:reward"),
    ),
    url=f"https://example.org/{numpy.__name__}",
)
