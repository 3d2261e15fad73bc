"""A manifest that registers something, and whose hooks then prove to be wrong."""

from __future__ import annotations

from plugrl.plugins import PLUGIN_API, Plugin, RewardEntry
from plugrl.rewards.registry import REWARDS

REWARDS.register("left_by_decorator", lambda text, ground_truth, extra_info: 0.0)

plugin = Plugin(
    name="fails_registering",
    api=PLUGIN_API,
    requires_core=">=0.1",
    summary="for the tests of the loader",
    rewards=(
        RewardEntry(name="left_by_manifest", target="fails_registering.reward:reward"),
    ),
    hooks="fails_registering.hooks",
)
