"""The first of two plugins that claim one key."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry

plugin = Plugin(
    name="duplicate_a",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="claimed_twice", target="duplicate_a.reward:reward"),
    ),
)
