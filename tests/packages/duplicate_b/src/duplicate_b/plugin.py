"""The second of two plugins that claim one key, beside a key of its own."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry

plugin = Plugin(
    name="duplicate_b",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="only_of_b", target="duplicate_b.reward:reward"),
        RewardEntry(name="claimed_twice", target="duplicate_b.reward:reward"),
    ),
)
