"""A manifest of a plugin API that is no longer supported."""

from __future__ import annotations

from plugrl.plugins import Plugin, RewardEntry

plugin = Plugin(
    name="old_api",
    api=0,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="of_old_api", target="old_api.reward:reward"),
    ),
)
