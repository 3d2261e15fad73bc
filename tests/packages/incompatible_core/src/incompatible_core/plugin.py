"""A manifest for another core."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry

plugin = Plugin(
    name="incompatible_core",
    api=PLUGIN_API,
    requires_core=">=99",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="of_another_core", target="incompatible_core.reward:reward"),
    ),
)
